"""AWS and the API in memory, behind the calls that the functions make."""
