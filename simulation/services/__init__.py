"""AWS's services in memory, behind the calls of boto3's clients."""
