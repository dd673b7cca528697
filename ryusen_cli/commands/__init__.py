"""One module a command group. Each reads arguments, asks the server, and prints; what is said stands in `views`."""
