"""The machines of the test cluster: network namespaces, kubelets, name service."""
