// Package integration runs the scheduler's own binary against a real etcd and kube-apiserver: make integration.
package integration
