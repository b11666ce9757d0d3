"""The policies of `template.yaml`, judged by parliament in `make lint`."""
