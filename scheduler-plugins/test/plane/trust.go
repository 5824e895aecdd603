package plane

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/cert"
)

// secrets makes the certificate of all servers of the plane, the key of service accounts, and two tokens: an administrator, and the
// scheduler's own service account, so that the scheduler has the rights of deploy/chart/files/scheduler-rbac.yaml and no more.
func (p *Plane) secrets() error {
	certificate, private, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		return err
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		"tls.crt": certificate, // with that of its authority
		"tls.key": private,
		"sa.key":  pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}),
		"tokens": []byte("admin,admin,1,\"system:masters\"\n" +
			"scheduler,system:serviceaccount:kube-system:coach-scheduler,2,\"system:serviceaccounts,system:serviceaccounts:kube-system,system:authenticated\"\n"),
	} {
		if err := os.WriteFile(filepath.Join(p.Folder, name), text, 0o600); err != nil {
			return err
		}
	}
	p.Web, err = rest.HTTPClientFor(&rest.Config{TLSClientConfig: p.trust()})
	return err
}

func (p *Plane) trust() rest.TLSClientConfig {
	return rest.TLSClientConfig{CAFile: filepath.Join(p.Folder, "tls.crt")}
}

// Serving gives the arguments of a server of the plane, the API server or a scheduler, that listens on a port.
func (p *Plane) Serving(port int) []string {
	return []string{"--secure-port", fmt.Sprint(port), "--bind-address", "127.0.0.1",
		"--tls-cert-file", filepath.Join(p.Folder, "tls.crt"), "--tls-private-key-file", filepath.Join(p.Folder, "tls.key")}
}

// Config of a client with one of the tokens: admin or scheduler. It is not throttled in practice.
func (p *Plane) Config(token string) *rest.Config {
	return &rest.Config{Host: p.URL, BearerToken: token, TLSClientConfig: p.trust(), QPS: 5000, Burst: 10000}
}

// Kubeconfig writes a file for a client with one of the tokens.
func (p *Plane) Kubeconfig(path, token string) error {
	return os.WriteFile(path, fmt.Appendf(nil, `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: %q, certificate-authority: %q}}], users: [{name: u, user: {token: %q}}]}`,
		p.URL, p.trust().CAFile, token), 0o600)
}
