package cluster

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// validFor bounds how long a lab can run; its certificates are made anew at each start.
const validFor = 30 * 24 * time.Hour

// authority signs the certificates of one trust domain. The lab has three: one for all that speaks
// to the API server; one for etcd alone, so that no component but the API server can read or
// write the store behind RBAC's back; and one for the API server as a proxy that vouches for users.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

// keyPair is a certificate with its key, both as PEM.
type keyPair struct {
	certificate []byte
	key         []byte
}

func newAuthority(name string) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the key of authority %s: %w", name, err)
	}
	template, err := newTemplate(pkix.Name{CommonName: name})
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("signing authority %s: %w", name, err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("reading back authority %s: %w", name, err)
	}
	return &authority{certificate: certificate, key: key}, nil
}

func (a *authority) pem() []byte { return encodeCertificate(a.certificate.Raw) }

// serving signs a certificate for a server that is reached by the given names and addresses.
func (a *authority) serving(commonName string, hosts ...string) (keyPair, error) {
	template, err := newTemplate(pkix.Name{CommonName: commonName})
	if err != nil {
		return keyPair{}, err
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
			continue
		}
		template.DNSNames = append(template.DNSNames, host)
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	return a.sign(template)
}

// client signs a credential: Kubernetes takes the common name for the user and the
// organizations for the groups.
func (a *authority) client(user string, groups ...string) (keyPair, error) {
	template, err := newTemplate(pkix.Name{CommonName: user, Organization: groups})
	if err != nil {
		return keyPair{}, err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.sign(template)
}

// peer signs a certificate that serves and calls under one identity, as etcd's own
// gateway does.
func (a *authority) peer(commonName string, address net.IP) (keyPair, error) {
	template, err := newTemplate(pkix.Name{CommonName: commonName})
	if err != nil {
		return keyPair{}, err
	}
	template.IPAddresses = []net.IP{address}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	return a.sign(template)
}

func (a *authority) sign(template *x509.Certificate) (keyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return keyPair{}, fmt.Errorf("making the key of %s: %w", template.Subject.CommonName, err)
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return keyPair{}, fmt.Errorf("signing the certificate of %s: %w", template.Subject.CommonName, err)
	}
	encoded, err := encodeKey(key)
	if err != nil {
		return keyPair{}, err
	}
	return keyPair{certificate: encodeCertificate(der), key: encoded}, nil
}

func newTemplate(subject pkix.Name) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("making a serial number for %s: %w", subject.CommonName, err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial, Subject: subject,
		// A machine whose clock is set back a little must not distrust its own lab.
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(validFor),
	}, nil
}

func encodeCertificate(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key crypto.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// pki writes the lab's certificates and kubeconfigs. Names of files are those of users'
// habits: ca.crt, apiserver.crt, apiserver.key, ...
type pki struct {
	paths     paths
	server    string // URL of the API server
	cluster   *authority
	etcd      *authority
	proxy     *authority
	nodeNames []string
}

// identities are the components' credentials: user and groups of each kubeconfig. All but the
// admin's have no right but what RBAC or the node authorizer gives to that very user.
func identities() map[string][]string {
	account := func(namespace, name string) []string {
		return []string{"system:serviceaccount:" + namespace + ":" + name, "system:serviceaccounts", "system:serviceaccounts:" + namespace}
	}
	return map[string][]string{
		identityAdmin:       {"belay-lab-admin", "system:masters"},
		identityKCM:         {"system:kube-controller-manager"},
		identityScheduler:   {"system:kube-scheduler"},
		identityProvisioner: account(labNamespace, "csi-provisioner"),
		identityCSIAttacher: account(labNamespace, "csi-attacher"),
		identityController:  account(belayNamespace, "belay-controller"),
		identityAttacher:    account(belayNamespace, "belay-attacher"),
	}
}

const (
	identityAdmin       = "admin"
	identityKCM         = "kube-controller-manager"
	identityScheduler   = "kube-scheduler"
	identityProvisioner = "csi-provisioner"
	identityCSIAttacher = "csi-attacher"
	identityController  = "belay-controller"
	identityAttacher    = "belay-attacher"

	// labNamespace holds what upstream's sidecars need, belayNamespace is that of deploy/.
	labNamespace   = "belay-lab"
	belayNamespace = "belay-system"

	// serviceRange is never routed: the lab has no kube-proxy. Its first address is in the API
	// server's certificate, as everywhere.
	serviceRange      = "10.96.0.0/24"
	firstServiceIP    = "10.96.0.1"
	loopback          = "127.0.0.1"
	kubeletClientUser = "kube-apiserver-kubelet-client"
	frontProxyUser    = "front-proxy-client"
)

// writePKI makes all keys, certificates and kubeconfigs of a lab.
func writePKI(p paths, server string, nodeNames []string) error {
	if err := os.MkdirAll(p.pki(), 0o700); err != nil {
		return fmt.Errorf("making the folder of certificates: %w", err)
	}
	cluster, err := newAuthority("belay-lab")
	if err != nil {
		return err
	}
	etcd, err := newAuthority("belay-lab-etcd")
	if err != nil {
		return err
	}
	proxy, err := newAuthority("belay-lab-front-proxy")
	if err != nil {
		return err
	}
	k := pki{paths: p, server: server, cluster: cluster, etcd: etcd, proxy: proxy, nodeNames: nodeNames}
	for _, write := range []func() error{k.authorities, k.servers, k.clients, k.kubeconfigs, k.nodes} {
		if err := write(); err != nil {
			return err
		}
	}
	return nil
}

func (k pki) authorities() error {
	for file, authority := range map[string]*authority{"ca.crt": k.cluster, "etcd-ca.crt": k.etcd, "front-proxy-ca.crt": k.proxy} {
		if err := writeSecret(k.paths.cert(file), authority.pem()); err != nil {
			return err
		}
	}
	// Service account tokens are signed with a key pair without a certificate.
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("making the service account key: %w", err)
	}
	private, err := encodeKey(key)
	if err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encoding the service account key: %w", err)
	}
	if err := writeSecret(k.paths.cert("sa.key"), private); err != nil {
		return err
	}
	return writeSecret(k.paths.cert("sa.pub"), pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
}

func (k pki) servers() error {
	apiserver, err := k.cluster.serving("kube-apiserver", loopback, "localhost", firstServiceIP,
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
	if err != nil {
		return err
	}
	control, err := k.cluster.serving("belay-lab-control-plane", loopback, "localhost")
	if err != nil {
		return err
	}
	etcd, err := k.etcd.peer("etcd", net.ParseIP(loopback))
	if err != nil {
		return err
	}
	for name, pair := range map[string]keyPair{"apiserver": apiserver, "control-plane": control, "etcd": etcd} {
		if err := k.writePair(name, pair); err != nil {
			return err
		}
	}
	return nil
}

// clients are the API server's own credentials towards etcd, the nodes and aggregated servers.
func (k pki) clients() error {
	toEtcd, err := k.etcd.client("kube-apiserver")
	if err != nil {
		return err
	}
	toKubelet, err := k.cluster.client(kubeletClientUser)
	if err != nil {
		return err
	}
	asProxy, err := k.proxy.client(frontProxyUser)
	if err != nil {
		return err
	}
	for name, pair := range map[string]keyPair{
		"apiserver-etcd-client": toEtcd, "apiserver-kubelet-client": toKubelet, "front-proxy-client": asProxy,
	} {
		if err := k.writePair(name, pair); err != nil {
			return err
		}
	}
	return nil
}

func (k pki) kubeconfigs() error {
	for name, user := range identities() {
		if err := k.kubeconfig(k.paths.kubeconfig(name), user[0], user[1:]...); err != nil {
			return err
		}
	}
	return nil
}

func (k pki) nodes() error {
	for _, node := range k.nodeNames {
		serving, err := k.cluster.serving("system:node:"+node, loopback, "localhost", node)
		if err != nil {
			return err
		}
		if err := k.writePair(node, serving); err != nil {
			return err
		}
		if err := k.kubeconfig(k.paths.kubeconfig(node), "system:node:"+node, "system:nodes"); err != nil {
			return err
		}
	}
	return nil
}

// kubeconfig writes one credential with everything inside, so that the file can be copied.
func (k pki) kubeconfig(path, user string, groups ...string) error {
	pair, err := k.cluster.client(user, groups...)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("making the folder of kubeconfig %s: %w", path, err)
	}
	const name = "belay-lab"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: k.server, CertificateAuthorityData: k.cluster.pem()}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: pair.certificate, ClientKeyData: pair.key}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: user}
	config.CurrentContext = name
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("writing kubeconfig %s: %w", path, err)
	}
	return nil
}

func (k pki) writePair(name string, pair keyPair) error {
	if err := writeSecret(k.paths.cert(name+".crt"), pair.certificate); err != nil {
		return err
	}
	return writeSecret(k.paths.cert(name+".key"), pair.key)
}

func writeSecret(path string, content []byte) error {
	if err := os.WriteFile(path, content, 0o600); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}
