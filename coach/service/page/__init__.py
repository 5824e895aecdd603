"""The web page: its files, and how a browser logs in. The sources are in `web/`; `make web` builds `static/`."""
