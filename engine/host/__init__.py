"""Engine hosts: an engine on a thread or in a child process, and the client interface to it."""
