"""The replicas of a fleet on the machines of a Ray cluster. Ray places them; our own sockets connect them."""
