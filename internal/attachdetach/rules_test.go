package attachdetach

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
)

func newReader(content []byte) *bufio.Reader { return bufio.NewReader(bytes.NewReader(content)) }

// checkRules compares what the controller asked of the API server in all tests with
// the rules that it is shipped with: nothing was refused, and nothing is granted
// that was not used.
func checkRules() error {
	used, refused, err := requests()
	if err != nil {
		return err
	}
	granted, err := grants()
	if err != nil {
		return err
	}
	var unused []string
	for right := range granted {
		if !used[right] && !rare[right] {
			unused = append(unused, right)
		}
	}
	slices.Sort(unused)
	if len(refused) > 0 || len(unused) > 0 {
		return fmt.Errorf("rules: refused %v, granted but never used %v", refused, unused)
	}
	return nil
}

// rare are rights that the tests need not come by.
var rare = map[string]bool{
	"patch events": true, // only when an event repeats
	// Only where lists cannot be streamed, or a watch fails; the lab's TestRights sees to both ways.
	"list csidrivers": true, "list persistentvolumeclaims": true, "list persistentvolumes": true,
}

// requests reads "verb resource[/subresource]" of each audited request.
func requests() (used map[string]bool, refused []string, err error) {
	file, err := os.Open(cluster.auditLog)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = file.Close() }()
	used = map[string]bool{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var entry struct {
			Verb      string
			ObjectRef *struct{ Resource, Subresource string }
			Status    *struct{ Code int } `json:"responseStatus"`
		}
		if err := json.Unmarshal(lines.Bytes(), &entry); err != nil {
			return nil, nil, err
		}
		if entry.ObjectRef == nil {
			continue // discovery
		}
		right := entry.Verb + " " + entry.ObjectRef.Resource
		if entry.ObjectRef.Subresource != "" {
			right += "/" + entry.ObjectRef.Subresource
		}
		if entry.Status != nil && entry.Status.Code == 403 {
			refused = append(refused, right)
		}
		used[right] = true
	}
	return used, refused, lines.Err()
}

// grants reads "verb resource" of each shipped rule.
func grants() (map[string]bool, error) {
	objects, err := manifest()
	if err != nil {
		return nil, err
	}
	granted := map[string]bool{}
	for _, object := range objects {
		var rules []rbacv1.PolicyRule
		switch o := object.(type) {
		case *rbacv1.ClusterRole:
			rules = o.Rules
		case *rbacv1.Role:
			rules = o.Rules
		}
		for _, rule := range rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					if strings.Contains(verb+resource, "*") {
						return nil, fmt.Errorf("a rule of %s grants %q on %q", object.GetName(), verb, resource)
					}
					granted[verb+" "+resource] = true
				}
			}
		}
	}
	return granted, nil
}
