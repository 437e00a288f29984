package cluster

import (
	"crypto"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
	kubeadmapi "k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm"
	"k8s.io/kubernetes/cmd/kubeadm/app/util/pkiutil"
)

// validFor bounds how long a lab can run; its certificates are new at each start.
const validFor = 30 * 24 * time.Hour

// certConfig is what all certificates of the lab have in common.
func certConfig(config certutil.Config) *pkiutil.CertConfig {
	config.NotBefore = time.Now().Add(-time.Hour) // a machine whose clock is set back a little must not distrust its own lab
	return &pkiutil.CertConfig{Config: config, NotAfter: time.Now().Add(validFor), EncryptionAlgorithm: kubeadmapi.EncryptionAlgorithmECDSAP256}
}

// authority signs the certificates of one trust domain. The lab has three: one for the API server and its clients; one for etcd alone, so that no component but the API server can read or
// write the store behind RBAC's back; and one for the API server as a proxy that vouches for users.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

func newAuthority(name string) (a authority, err error) {
	if a.certificate, a.key, err = pkiutil.NewCertificateAuthority(certConfig(certutil.Config{CommonName: name})); err != nil {
		return a, fmt.Errorf("making authority %s: %w", name, err)
	}
	return a, nil
}

// sign makes a key and its certificate.
func (a authority) sign(config certutil.Config) (*x509.Certificate, crypto.Signer, error) {
	certificate, key, err := pkiutil.NewCertAndKey(a.certificate, a.key, certConfig(config))
	if err != nil {
		return nil, nil, fmt.Errorf("making the certificate of %s: %w", config.CommonName, err)
	}
	return certificate, key, nil
}

// server is for a server that is reached by the given names besides the loopback.
func server(commonName string, names ...string) certutil.Config {
	return certutil.Config{
		CommonName: commonName, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		AltNames: certutil.AltNames{DNSNames: append(names, "localhost"), IPs: []net.IP{net.ParseIP(loopback)}},
	}
}

// client is for a credential: Kubernetes takes the common name for the user and the organizations for the groups.
func client(user string, groups ...string) certutil.Config {
	return certutil.Config{CommonName: user, Organization: groups, Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
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
		identityDetector:    account(belayNamespace, identityDetector),
		identityFencer:      account(belayNamespace, identityFencer),
		identityActor:       account(belayNamespace, identityActor),
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

// writePKI makes all keys, certificates and kubeconfigs of a lab. Names of files are those of users' habits: ca.crt, apiserver.crt,
// apiserver.key, ...
func writePKI(p paths, at ports, nodeNames []string) error {
	if err := os.MkdirAll(p.pki(), 0o700); err != nil {
		return fmt.Errorf("making the folder of certificates: %w", err)
	}
	authorities := map[string]authority{}
	for file, name := range map[string]string{"ca": "belay-lab", "etcd-ca": "belay-lab-etcd", "front-proxy-ca": "belay-lab-front-proxy"} {
		a, err := newAuthority(name)
		if err != nil {
			return err
		}
		if err := pkiutil.WriteCert(p.pki(), file, a.certificate); err != nil {
			return err
		}
		authorities[file] = a
	}
	if err := writeServiceAccountKey(p); err != nil {
		return err
	}
	apiserver := server("kube-apiserver", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
	apiserver.AltNames.IPs = append(apiserver.AltNames.IPs, net.ParseIP(firstServiceIP))
	for _, node := range nodeNames {
		apiserver.AltNames.IPs = append(apiserver.AltNames.IPs, net.ParseIP(at.nodeAddress(node))) // where the node finds it
	}
	etcd := server("etcd")
	etcd.Usages = append(etcd.Usages, x509.ExtKeyUsageClientAuth) // its own gateway calls it under the same identity
	certificates := map[string]map[string]certutil.Config{
		"ca":             {"apiserver": apiserver, "control-plane": server("belay-lab-control-plane"), "apiserver-kubelet-client": client(kubeletClientUser)},
		"etcd-ca":        {"etcd": etcd, "apiserver-etcd-client": client("kube-apiserver")},
		"front-proxy-ca": {"front-proxy-client": client(frontProxyUser)},
	}
	kubeconfigs := identities()
	for _, node := range nodeNames {
		serving := server("system:node:"+node, node)
		serving.AltNames.IPs = append(serving.AltNames.IPs, net.ParseIP(at.nodeAddress(node)))
		certificates["ca"][node] = serving
		kubeconfigs[node] = []string{"system:node:" + node, "system:nodes"}
	}
	for ca, configs := range certificates {
		for file, config := range configs {
			certificate, key, err := authorities[ca].sign(config)
			if err != nil {
				return err
			}
			if err := pkiutil.WriteCertAndKey(p.pki(), file, certificate, key); err != nil {
				return err
			}
		}
	}
	for name, user := range kubeconfigs {
		url := at.server()
		if slices.Contains(nodeNames, name) {
			url = "https://" + at.uplink(name)
		}
		if err := authorities["ca"].writeKubeconfig(p.kubeconfig(name), url, client(user[0], user[1:]...)); err != nil {
			return err
		}
	}
	return nil
}

// writeServiceAccountKey makes the key pair by which service account tokens are signed. It has no certificate.
func writeServiceAccountKey(p paths) error {
	key, err := pkiutil.NewPrivateKey(kubeadmapi.EncryptionAlgorithmECDSAP256)
	if err != nil {
		return fmt.Errorf("making the service account key: %w", err)
	}
	if err := pkiutil.WriteKey(p.pki(), "sa", key); err != nil {
		return err
	}
	return pkiutil.WritePublicKey(p.pki(), "sa", key.Public())
}

// writeKubeconfig writes one credential with everything inside, so that the file can be copied.
func (a authority) writeKubeconfig(path, url string, user certutil.Config) error {
	certificate, key, err := a.sign(user)
	if err != nil {
		return err
	}
	encoded, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return fmt.Errorf("encoding the key of %s: %w", user.CommonName, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("making the folder of kubeconfig %s: %w", path, err)
	}
	const name = "belay-lab"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: url, CertificateAuthorityData: pkiutil.EncodeCertPEM(a.certificate)}
	config.AuthInfos[user.CommonName] = &clientcmdapi.AuthInfo{ClientCertificateData: pkiutil.EncodeCertPEM(certificate), ClientKeyData: encoded}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: user.CommonName}
	config.CurrentContext = name
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("writing kubeconfig %s: %w", path, err)
	}
	return nil
}
