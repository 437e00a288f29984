package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/clientcmd"
)

func writtenPKI(t *testing.T) paths {
	t.Helper()
	p := paths{cache: t.TempDir(), name: "test"}
	if err := writePKI(p, ports{APIServer: 20443}, []string{"node-1"}); err != nil {
		t.Fatal(err)
	}
	return p
}

func pool(t *testing.T, path string) *x509.CertPool {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	certificates := x509.NewCertPool()
	if !certificates.AppendCertsFromPEM(content) {
		t.Fatalf("%s holds no certificate", path)
	}
	return certificates
}

func certificate(t *testing.T, content []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(content)
	if block == nil {
		t.Fatal("no PEM")
	}
	parsed, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestEachComponentHasItsOwnIdentity(t *testing.T) {
	p := writtenPKI(t)
	want := map[string][]string{ // user, then groups in order
		"admin":                   {"belay-lab-admin", "system:masters"},
		"kube-controller-manager": {"system:kube-controller-manager"},
		"kube-scheduler":          {"system:kube-scheduler"},
		"csi-provisioner":         {"system:serviceaccount:belay-lab:csi-provisioner", "system:serviceaccounts", "system:serviceaccounts:belay-lab"},
		"csi-attacher":            {"system:serviceaccount:belay-lab:csi-attacher", "system:serviceaccounts", "system:serviceaccounts:belay-lab"},
		"belay-controller":        {"system:serviceaccount:belay-system:belay-controller", "system:serviceaccounts", "system:serviceaccounts:belay-system"},
		"belay-attacher":          {"system:serviceaccount:belay-system:belay-attacher", "system:serviceaccounts", "system:serviceaccounts:belay-system"},
		"node-1":                  {"system:node:node-1", "system:nodes"},
	}
	got := map[string][]string{}
	for name := range want {
		config, err := clientcmd.BuildConfigFromFlags("", p.kubeconfig(name))
		if err != nil {
			t.Fatal(err)
		}
		if want := map[bool]string{false: "https://127.0.0.1:20443", true: "https://127.79.219.1:6443"}[name == "node-1"]; config.Host != want {
			t.Errorf("%s goes to %s, want %s", name, config.Host, want)
		}
		if _, err := tls.X509KeyPair(config.CertData, config.KeyData); err != nil {
			t.Errorf("%s: key and certificate do not fit: %v", name, err)
		}
		c := certificate(t, config.CertData)
		groups := slices.Sorted(slices.Values(c.Subject.Organization))
		got[name] = append([]string{c.Subject.CommonName}, groups...)
		if _, err := c.Verify(x509.VerifyOptions{Roots: pool(t, p.cert("ca.crt")), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Errorf("%s is not a client of the lab: %v", name, err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("identities (-want +got): %s", diff)
	}
}

func TestServerCertificateNames(t *testing.T) {
	p := writtenPKI(t)
	for name, test := range map[string]struct {
		ca    string
		hosts []string
	}{
		"apiserver":     {"ca.crt", []string{"127.0.0.1", "localhost", "10.96.0.1", "kubernetes.default.svc", "127.79.219.1"}},
		"control-plane": {"ca.crt", []string{"127.0.0.1"}},
		"node-1":        {"ca.crt", []string{"127.0.0.1", "127.79.219.1", "node-1"}},
		"etcd":          {"etcd-ca.crt", []string{"127.0.0.1"}},
	} {
		t.Run(name, func(t *testing.T) {
			content, err := os.ReadFile(p.cert(name + ".crt"))
			if err != nil {
				t.Fatal(err)
			}
			for _, host := range test.hosts {
				_, err := certificate(t, content).Verify(x509.VerifyOptions{Roots: pool(t, p.cert(test.ca)), DNSName: host})
				if err != nil {
					t.Errorf("as %s: %v", host, err)
				}
			}
		})
	}
}

// A client of etcd is above RBAC: only the API server may be one.
func TestOnlyAPIServerReachesEtcd(t *testing.T) {
	p := writtenPKI(t)
	etcd := x509.VerifyOptions{Roots: pool(t, p.cert("etcd-ca.crt")), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for name := range identities() {
		config, err := clientcmd.BuildConfigFromFlags("", p.kubeconfig(name))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := certificate(t, config.CertData).Verify(etcd); err == nil {
			t.Errorf("the credential of %s opens etcd", name)
		}
	}
	content, err := os.ReadFile(p.cert("apiserver-etcd-client.crt"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := certificate(t, content).Verify(etcd); err != nil {
		t.Errorf("the API server's own does not: %v", err)
	}
}

func TestKeysAreReadableByOwnerOnly(t *testing.T) {
	p := writtenPKI(t)
	entries, err := os.ReadDir(p.pki())
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(entry.Name()) != ".crt" && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", entry.Name(), info.Mode())
		}
	}
}
