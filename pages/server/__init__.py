"""The server: guards, limits, access and start-up."""
