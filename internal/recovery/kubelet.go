package recovery

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"

	"belay.dev/belay/internal/fencing"
)

// kubeletWithin is how long a kubelet may take to answer: with the reads after it, well below fencing.MaxTickGap.
const kubeletWithin = 700 * time.Millisecond

// askKubelet asks the kubelet's port whether anybody is there. Any answer over HTTP is one, also that the request is not permitted. A
// connection alone is none: the kernel accepts it for a process that is frozen. Unknown if the Node gives no address.
func askKubelet(ctx context.Context, node *corev1.Node) (answers fencing.Knowledge, refused bool) {
	port := node.Status.DaemonEndpoints.KubeletEndpoint.Port
	address := ""
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			address = a.Address
			break
		}
	}
	if port == 0 || address == "" {
		return fencing.Unknown, false
	}
	target := "https://" + net.JoinHostPort(address, strconv.Itoa(int(port))) + "/healthz"
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, target, http.NoBody)
	if err != nil {
		return fencing.Unknown, false
	}
	transport := &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // nothing is sent, and whoever answers is alive
	}
	defer transport.CloseIdleConnections()
	response, err := transport.RoundTrip(r)
	if err != nil {
		return fencing.No, errors.Is(err, syscall.ECONNREFUSED)
	}
	_ = response.Body.Close()
	return fencing.Yes, false
}
