package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"belay.dev/belay/lab/audit"
)

// auditWithin bounds the wait for the API server's own record of a request.
const auditWithin = time.Minute

func writeAuditPolicy(p paths, o Options) error {
	if !o.Audit {
		return nil
	}
	if err := os.MkdirAll(p.audit(), 0o700); err != nil {
		return fmt.Errorf("making the folder of the audit log: %w", err)
	}
	if err := os.WriteFile(p.auditPolicy(), audit.Policy(), 0o600); err != nil {
		return fmt.Errorf("writing the audit policy: %w", err)
	}
	return nil
}

func auditArgs(p paths) []string {
	return []string{
		"--audit-policy-file=" + p.auditPolicy(), "--audit-log-path=" + p.auditLog(),
		"--audit-log-maxsize=" + strconv.Itoa(audit.MaxSizeMB), "--audit-log-maxbackup=" + strconv.Itoa(audit.MaxBackups),
	}
}

// ErrNotAudited says that the lab was started without Options.Audit.
var ErrNotAudited = errors.New("the lab was started without an audit log")

// Requests are those that the API server received at or after from and before to, or, with a
// zero to, until now; oldest first. All that were answered before this call are among them. The log is bounded
// (audit.MaxSizeMB, audit.MaxBackups): what was asked long ago in a busy lab may be gone.
func (c *Cluster) Requests(ctx context.Context, from, to time.Time) ([]audit.Request, error) {
	if !c.options.Audit {
		return nil, ErrNotAudited
	}
	if to.IsZero() {
		to = time.Now()
	}
	// The API server writes its requests down in the order in which it ends them: once it has
	// written one that was made now, all earlier ones are there.
	client, err := kubernetes.NewForConfig(c.RESTConfig())
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	marker, asked := "audit-marker-"+uuid.NewString(), time.Now()
	if _, err := client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Get(ctx, marker, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("asking for what is not there, to find it in the audit log: %w", err)
	}
	err = c.await(ctx, "the audit log", auditWithin, func(context.Context) error {
		recent, err := audit.Read(c.paths.auditLog(), asked.Add(-time.Second), time.Time{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(recent, func(r audit.Request) bool { return r.Name == marker }) {
			return errors.New("a request of a moment ago is not in it")
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return audit.Read(c.paths.auditLog(), from, to)
}
