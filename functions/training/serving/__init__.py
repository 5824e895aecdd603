"""The processes of a function: the one that answers, its warm zygote, and the template that both are forked from."""
