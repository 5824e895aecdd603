"""A job: its state, the events and actions that change it, and the reasons for its states."""
