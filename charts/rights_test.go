package charts

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"belay.dev/belay/internal/testing/apiserver"
)

// rightsPage has the tables of all rules.
const rightsPage = "../docs/rights.md"

// ruleRow is a row of a table of rightsPage: a rule of a role.
type ruleRow struct {
	role, resources, verbs string
	beside, upstream       string // the role of upstream that the table names, and its verbs
}

func (r ruleRow) rule() string { return fmt.Sprintf("%s: %s: %s", r.role, r.resources, r.verbs) }

var (
	roleHeading   = regexp.MustCompile(`^### ((?:ClusterRole|Role) \S+(?: in .+)?)$`)
	besideRole    = regexp.MustCompile("^Beside `([^`]+)`")
	documentedRow = regexp.MustCompile(`^\| (.+?) \| ([a-z, -]+?) \| .+? \|(?: (.+?) \|)?$`)
)

func documentedRules(t *testing.T) (rows []ruleRow) {
	t.Helper()
	page, err := os.ReadFile(rightsPage)
	must(t, err)
	var role, beside string
	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		if m := roleHeading.FindStringSubmatch(line); m != nil {
			role, beside = m[1], ""
		} else if m := besideRole.FindStringSubmatch(line); m != nil {
			beside = m[1]
		} else if m := documentedRow.FindStringSubmatch(line); m != nil && role != "" && m[1] != "resources" {
			rows = append(rows, ruleRow{role, m[1], m[2], beside, m[3]})
		}
	}
	if len(rows) < 20 {
		t.Fatalf("%d rows in %s", len(rows), rightsPage)
	}
	return rows
}

// ruleRows are the rules of roles as rows: release is the namespace of the release.
func ruleRows(t *testing.T, release string, objects []*unstructured.Unstructured) (rows []ruleRow) {
	t.Helper()
	for _, kind := range []string{"ClusterRole", "Role"} {
		for _, role := range apiserver.Decode[rbacv1.ClusterRole](t, objects, kind) {
			name := kind + " " + role.Name
			if role.Namespace == release {
				name += " in belay's namespace"
			} else if role.Namespace != "" {
				name += " in " + role.Namespace
			}
			for _, rule := range role.Rules {
				rows = append(rows, ruleRow{role: name, resources: resourcesOf(rule), verbs: strings.Join(slices.Sorted(slices.Values(rule.Verbs)), ", ")})
			}
		}
	}
	return rows
}

func resourcesOf(rule rbacv1.PolicyRule) string {
	var all []string
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			if group != "" {
				resource += "." + group
			}
			all = append(all, "`"+resource+"`")
		}
	}
	for _, url := range rule.NonResourceURLs {
		all = append(all, "path `"+url+"`")
	}
	text := strings.Join(all, ", ")
	if len(rule.ResourceNames) > 0 {
		text += " named `" + strings.Join(rule.ResourceNames, "`, `") + "`"
	}
	return text
}

// TestRightsAreDocumented: each rule that is shipped has a row in docs/rights.md, and each row is a rule.
func TestRightsAreDocumented(t *testing.T) {
	documented, shipped := map[string]bool{}, map[string]bool{}
	for _, row := range documentedRules(t) {
		if documented[row.rule()] {
			t.Errorf("twice in %s: %s", rightsPage, row.rule())
		}
		documented[row.rule()] = true
	}
	files, err := filepath.Glob("../deploy/*/*.yaml")
	must(t, err)
	files = slices.DeleteFunc(files, func(f string) bool { // no manifests, but templates of other programs
		return strings.Contains(f, "/krew/") || strings.Contains(f, "/otel/") || strings.Contains(f, "/alerts/")
	})
	for _, row := range ruleRows(t, "belay-system", apiserver.Manifests(t, files...)) {
		shipped[row.rule()] = true
	}
	for _, rule := range slices.Sorted(maps.Keys(shipped)) {
		if !documented[rule] {
			t.Errorf("not in %s: %s", rightsPage, rule)
		}
		if strings.Contains(rule, "*") {
			t.Errorf("a wildcard: %s", rule)
		}
	}
	for _, rule := range slices.Sorted(maps.Keys(documented)) {
		if !shipped[rule] {
			t.Errorf("in %s, and no rule of deploy/: %s", rightsPage, rule)
		}
	}
	for name, values := range variants {
		for _, row := range ruleRows(t, namespace, render(t, append(slices.Clone(values), "recovery.secrets[0].name=bmc")...)) {
			row.role = strings.Replace(row.role, "fencer-secrets in default", "fencer-secrets in belay's namespace", 1) // in each that has some
			if !documented[row.rule()] {
				t.Errorf("%s: not in %s: %s", name, rightsPage, row.rule())
			}
		}
	}
}

// TestRightsBesideUpstream: what docs/rights.md says of upstream's roles is what the API server of that version has, and csi-attacher ships
// (external-attacher v4.12.0, deploy/kubernetes/rbac.yaml).
func TestRightsBesideUpstream(t *testing.T) {
	cluster.Start(t)
	sidecar := map[string]rbacv1.ClusterRole{}
	for _, role := range apiserver.Decode[rbacv1.ClusterRole](t, apiserver.Manifests(t, "testdata/csi-attacher-v4.12.0-rbac.yaml"), "ClusterRole", "Role") {
		sidecar[role.Name] = role
	}
	compared := 0
	for _, row := range documentedRules(t) {
		if row.beside == "" {
			continue
		}
		role, ok := sidecar[row.beside]
		if !ok {
			must(t, cluster.Client.Get(t.Context(), client.ObjectKey{Name: row.beside}, &role))
		}
		compared++
		for resource := range strings.SplitSeq(row.resources, ", ") {
			verbs := map[string]bool{}
			for _, rule := range role.Rules {
				for _, group := range rule.APIGroups {
					for _, r := range rule.Resources {
						if one := (rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{r}}); resourcesOf(one) == resource {
							for _, verb := range rule.Verbs {
								verbs[verb] = true
							}
						}
					}
				}
			}
			if has := strings.Join(slices.Sorted(maps.Keys(verbs)), ", "); has != row.upstream {
				t.Errorf("%s: %s of %s grants %q on %s, and the table says %q", row.role, row.beside, "upstream", has, resource, row.upstream)
			}
		}
	}
	if compared < 10 {
		t.Errorf("%d rules beside upstream's", compared)
	}
}
