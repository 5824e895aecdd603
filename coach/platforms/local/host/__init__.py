"""A small twin of Nuclio's processor for Python functions: one function on one machine, without Docker.

    python -m coach.platforms.local.host --config processor.yaml --platform-config platform.yaml

One HTTP address, one warm wrapper process per worker, one event at a time in each. What a client and a function
can observe is what Nuclio's processor does (docs/reference/nuclio-contract.md); `launch` starts and ends a host from
asyncio. This module imports nothing, because a machine may start twenty hosts at once.
"""
