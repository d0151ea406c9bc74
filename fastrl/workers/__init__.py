"""The bodies of the four kinds of process, and the supervisor that owns them."""
