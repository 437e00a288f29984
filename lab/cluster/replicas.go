package cluster

import (
	"context"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"belay.dev/belay/internal/kube"
)

// standbySuffix follows the name of a component in that of its standby. The name is the standby's hostname, too: the lease distinguishes the attachers
// by it.
const standbySuffix = "-2"

// replicas are the names of a component and of its standby, if the lab has standbys.
func (o Options) replicas(component string) []string {
	if o.Standbys {
		return []string{component, component + standbySuffix}
	}
	return []string{component}
}

// hostname is that of a component: empty for the machine's.
func hostname(component string) string {
	if strings.HasSuffix(component, standbySuffix) {
		return component
	}
	return ""
}

// Leader is which of a component and its standby holds their lease, empty if neither does, and when it renewed it. It may have ended since.
// Components are attach-controller, with belay's plane, and attacher.
func (c *Cluster) Leader(ctx context.Context, component string) (leader string, renewed time.Time, err error) {
	namespace, name := metav1.NamespaceSystem, kube.FieldManager
	if component == componentAttacher {
		namespace, name = SidecarNamespace(c.options.Plane), "external-attacher-leader-"+kube.SanitizeDriverName(c.options.attachDrivers()[0])
	}
	client, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		return "", renewed, fmt.Errorf("making a client: %w", err)
	}
	lease, err := client.CoordinationV1().Leases(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", renewed, fmt.Errorf("reading the lease of %s: %w", component, err)
	}
	renewed = ptr.Deref(lease.Spec.RenewTime, metav1.MicroTime{}).Time
	host, _, _ := strings.Cut(ptr.Deref(lease.Spec.HolderIdentity, ""), "_") // belay-controller adds an ID of its process
	switch host {
	case "", component + standbySuffix:
		return host, renewed, nil
	}
	return component, renewed, nil
}
