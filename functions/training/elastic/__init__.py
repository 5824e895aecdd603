"""Groups whose workers come and go while they train: the protocol of training.membership on sockets and threads."""
