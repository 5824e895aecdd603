"""Commands on the service and on the installation."""
