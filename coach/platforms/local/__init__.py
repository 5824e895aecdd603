"""The local platform: function processes on this machine."""
