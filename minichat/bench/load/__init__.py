"""A server under load: many clients, arrivals and traces."""
