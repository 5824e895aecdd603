// Command controlplane is etcd and kube-apiserver in one binary, chosen by the name it is called by. It exists for the
// integration tests, is built from the same modules as Kubernetes's own, and is in a module of its own so that the scheduler
// does not depend on it.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "etcd":
		etcdmain.Main(os.Args)
	case "kube-apiserver":
		os.Exit(cli.Run(app.NewAPIServerCommand()))
	default:
		fmt.Fprintf(os.Stderr, "call this as etcd or kube-apiserver, not as %s\n", name)
		os.Exit(2)
	}
}
