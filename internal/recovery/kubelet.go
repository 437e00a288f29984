package recovery

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	fencingv1 "belay.dev/belay/api/fencing/v1alpha1"
	"belay.dev/belay/internal/fencing"
)

// kubeletWithin is how long a kubelet may take to answer: with the reads after it, well below fencing.MaxTickGap.
const kubeletWithin = 700 * time.Millisecond

// maxAnswer bounds the header of an answer: the machine that has the address writes it.
const maxAnswer = 16 << 10

// kubelet is what came from the kubelet's port of a Node.
type kubelet struct {
	answers fencing.Knowledge
	key     string // of the certificate of the process that answered
	refused bool
}

// addressWithin bounds the read of a kubelet's address, so that it takes nothing of the time of the kubelet.
const addressWithin = 500 * time.Millisecond

// askKubelet asks the port that the Node names, as the API server has it now. The caches do not keep its address. Ready is the Node's condition. An error
// is of the API server, and says nothing about the kubelet: it was not asked.
func (p *parts) askKubelet(ctx context.Context, name string) (k kubelet, is fencing.Knowledge, err error) {
	read, cancel := context.WithTimeout(ctx, addressWithin)
	defer cancel()
	node := &corev1.Node{}
	if err := p.live.Get(read, client.ObjectKey{Name: name}, node); err != nil {
		return kubelet{}, fencing.Unknown, fmt.Errorf("read the address of node %s: %w", name, err)
	}
	ctx, cancel = context.WithTimeout(ctx, kubeletWithin)
	defer cancel()
	ask := askKubelet
	if p.port != nil {
		ask = p.port
	}
	return ask(ctx, node), ready(node), nil
}

// askKubelet asks the kubelet's port whether anybody is there. Any answer over HTTP is one, also that the request is not permitted. A
// connection alone is none: the kernel accepts it for a process that is frozen. Unknown if the Node gives no address. Whose answer it is, the key
// shows: the handshake proves that its owner answers, whichever authority has signed the certificate.
func askKubelet(ctx context.Context, node *corev1.Node) kubelet {
	port := node.Status.DaemonEndpoints.KubeletEndpoint.Port
	address := ""
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			address = a.Address
			break
		}
	}
	if port == 0 || address == "" {
		return kubelet{}
	}
	target := "https://" + net.JoinHostPort(address, strconv.Itoa(int(port))) + "/healthz"
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, target, http.NoBody)
	if err != nil {
		return kubelet{}
	}
	transport := &http.Transport{
		DisableKeepAlives: true, MaxResponseHeaderBytes: maxAnswer,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // nothing is sent, and the key is compared
	}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(r)
	if err != nil {
		return kubelet{answers: fencing.No, refused: errors.Is(err, syscall.ECONNREFUSED)}
	}
	_ = response.Body.Close()
	return kubelet{answers: fencing.Yes, key: keyOf(response.TLS.PeerCertificates[0])}
}

// keyOf names the public key of a certificate, as kubeadm does (--discovery-token-ca-cert-hash).
func keyOf(certificate *x509.Certificate) string {
	sum := sha256.Sum256(certificate.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// rememberedKey is the key that the kubelet of a boot had while it lived, empty if the source has none of this boot. Only the fencer writes it there:
// what a kubelet writes about itself, as the annotations of its Node, would let it choose.
func rememberedKey(source *fencingv1.FenceSource, boot fencing.Boot) string {
	if b := source.Status.Bound; b != nil && b.NodeUID == boot.NodeUID && b.BootID == boot.ID {
		return b.KubeletKey
	}
	return ""
}
