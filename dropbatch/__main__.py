"""`python -m dropbatch`, and the console script."""

from dropbatch.cli.main import main

if __name__ == "__main__":
    main()
