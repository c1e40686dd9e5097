"""Several engines as one: a router, the client in front of it, and how replicas are started."""
