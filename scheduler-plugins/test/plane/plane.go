// Package plane starts a real API server with its store on loopback addresses, from the program test/controlplane: for the integration
// tests and the benchmarks.
package plane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// Plane is an API server with its store, on loopback addresses.
type Plane struct {
	Folder  string // of its files
	URL     string
	Web     *http.Client          // trusts the certificate of the plane, and no other
	Client  *kubernetes.Clientset // an administrator's
	Dynamic dynamic.Interface
}

// Binary gives the path of a program that make has built; COACH_BIN names its folder.
func Binary(name string) (string, error) {
	folder := os.Getenv("COACH_BIN")
	if folder == "" {
		return "", errors.New("COACH_BIN does not name the folder of the programs; run: make integration, or make bench")
	}
	return filepath.Abs(filepath.Join(folder, name))
}

// Start a control plane with its files in folder and the objects of deploy/chart/files; stop ends it. It has no controllers and no
// kubelets: nodes are objects, and a test that deletes a bound pod with a grace period has to finish it.
func Start(ctx context.Context, folder, deploy string) (p *Plane, stop func(), err error) {
	program, err := Binary("controlplane")
	if err != nil {
		return nil, nil, err
	}
	var children []*exec.Cmd
	stop = func() {
		for i := len(children) - 1; i >= 0; i-- {
			_ = children[i].Process.Kill()
			_ = children[i].Wait()
		}
	}
	launch := func(name string, args ...string) error {
		link := filepath.Join(folder, name)
		if err := os.Symlink(program, link); err != nil {
			return err
		}
		command, err := Spawn(link, filepath.Join(folder, name+".log"), args...)
		if err == nil {
			children = append(children, command)
		}
		return err
	}
	ports, err := FreePorts(3)
	if err != nil {
		return nil, nil, err
	}
	p = &Plane{Folder: folder, URL: fmt.Sprintf("https://127.0.0.1:%d", ports[2])}
	if err := p.secrets(); err != nil {
		return nil, nil, err
	}
	store := fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	peer := fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	if err := launch("etcd", "--data-dir", filepath.Join(folder, "etcd-data"), "--listen-client-urls", store, "--advertise-client-urls", store,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer, "--unsafe-no-fsync"); err != nil {
		return nil, nil, err
	}
	if err := launch("kube-apiserver", append(p.Serving(ports[2]), "--etcd-servers", store,
		"--token-auth-file", filepath.Join(folder, "tokens"), "--authorization-mode", "RBAC",
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", filepath.Join(folder, "sa.key"),
		"--service-account-signing-key-file", filepath.Join(folder, "sa.key"), "--service-cluster-ip-range", "10.0.0.0/24",
		"--disable-admission-plugins", "ServiceAccount,TaintNodesByCondition")...); err != nil {
		stop()
		return nil, nil, err
	}
	config := p.Config("admin")
	if p.Client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, stop, err
	}
	if p.Dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, stop, err
	}
	deadline := time.Now().Add(90 * time.Second)
	for {
		if _, err = p.Client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err == nil {
			break
		}
		if time.Now().After(deadline) {
			stop()
			log, _ := os.ReadFile(filepath.Join(folder, "kube-apiserver.log"))
			return nil, nil, fmt.Errorf("the API server does not get ready: %w\n%s", err, log[max(0, len(log)-4000):])
		}
		time.Sleep(100 * time.Millisecond)
	}
	for _, file := range []string{"gang-crd.yaml", "scheduler-rbac.yaml"} {
		if err := p.Apply(ctx, filepath.Join(deploy, "../chart/files", file)); err != nil {
			stop()
			return nil, nil, err
		}
	}
	return p, stop, nil
}

// Spawn a program that ends with this one.
func Spawn(program, log string, args ...string) (*exec.Cmd, error) {
	output, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer output.Close()
	command := exec.Command(program, args...)
	command.Stdout, command.Stderr = output, output
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return command, command.Start()
}

// FreePorts of the loopback address, that were free a moment ago.
func FreePorts(count int) ([]int, error) {
	var ports []int
	for range count {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close() // all are held until all are found
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// Apply the objects of a file, and wait until the API server serves what a CRD defines.
func (p *Plane) Apply(ctx context.Context, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(&object.Object); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		kind := object.GroupVersionKind()
		resource := schema.GroupVersionResource{Group: kind.Group, Version: kind.Version, Resource: plural(kind.Kind)}
		if _, err := p.Dynamic.Resource(resource).Namespace(object.GetNamespace()).Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("%s: %s %s: %w", path, kind.Kind, object.GetName(), err)
		}
		if kind.Kind == "CustomResourceDefinition" {
			if err := p.served(ctx, object); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
	}
}

// served waits until the API server serves what a CRD defines.
func (p *Plane) served(ctx context.Context, crd *unstructured.Unstructured) error {
	group, _, _ := unstructured.NestedString(crd.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(crd.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(crd.Object, "spec", "versions")
	version, _ := versions[0].(map[string]any)["name"].(string)
	resource := schema.GroupVersionResource{Group: group, Version: version, Resource: plural}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if _, err := p.Dynamic.Resource(resource).Namespace("default").List(ctx, metav1.ListOptions{}); err == nil {
			return nil
		} else if time.Now().After(deadline) {
			return fmt.Errorf("%s is not served: %w", resource, err)
		}
	}
}

func plural(kind string) string {
	return map[string]string{"CustomResourceDefinition": "customresourcedefinitions", "ServiceAccount": "serviceaccounts", "ClusterRole": "clusterroles",
		"ClusterRoleBinding": "clusterrolebindings", "Role": "roles", "RoleBinding": "rolebindings"}[kind]
}
