"""The two kinds of policies: each is written for one question of a driver; a template method answers the other."""
