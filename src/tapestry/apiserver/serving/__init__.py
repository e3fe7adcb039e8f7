"""Requests from the socket to the server, and the server as a process that can be looked after."""
