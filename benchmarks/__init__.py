"""Measures the whole product: real server and worker processes, a real file, real sockets. `make bench` runs it; nothing here gates CI."""
