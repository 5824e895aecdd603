"""Policies that choose anew, every round of some minutes, which jobs run: those that papers since 2019 compare."""
