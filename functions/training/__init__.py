"""The package that the scheduler, server and worker functions share. Framework-free, except the `mxnet` folder."""
