"""The event engine: a million jobs in virtual time, under policies that decide event by event."""
