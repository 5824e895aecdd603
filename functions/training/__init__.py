"""What the scheduler, server and worker functions share. Framework-free, but for the `mxnet` folder."""
