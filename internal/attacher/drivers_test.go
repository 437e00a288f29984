package attacher

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"belay.dev/belay/internal/testing/apiserver"
)

// csiDriver is how a CSI driver runs csi-attacher, as testdata/drivers.yaml describes it.
type csiDriver struct {
	Driver   string
	Version  string
	Source   driverSource
	Args     []string
	Optional []string
	Env      map[string]string
	Roles    []struct {
		Path  string
		Of    *driverSource
		Own   bool
		Rules []rbacv1.PolicyRule
	}
	Missing   []string
	Elsewhere []string
	Secrets   bool
	Swap      struct {
		Values map[string]string
		Patch  *appsv1.Deployment // a StatefulSet's is of the same form
	}
}

// driverSource is a file of a public repository. The version of a file other than the manifest's is its own.
type driverSource struct{ Repository, Path, Commit, Version string }

func csiDrivers(t *testing.T) (drivers []csiDriver) {
	t.Helper()
	text, err := os.ReadFile("testdata/drivers.yaml")
	must(t, err)
	must(t, yaml.UnmarshalStrict(text, &drivers))
	if len(drivers) == 0 {
		t.Fatal("testdata/drivers.yaml has no drivers")
	}
	return drivers
}

// grants reports whether a role of the account grants a right as apiserver.Granted writes it. With own, only the roles
// that are meant for the attacher count.
func (d csiDriver) grants(right string, own bool) bool {
	verb, object, _ := strings.Cut(right, " ")
	group, resource, _ := strings.Cut(object, "/")
	has := func(names []string, name string) bool {
		return slices.Contains(names, name) || slices.Contains(names, "*")
	}
	for _, role := range d.Roles {
		for _, rule := range role.Rules {
			if (role.Own || !own) && has(rule.Verbs, verb) && has(rule.APIGroups, group) && has(rule.Resources, resource) {
				return true
			}
		}
	}
	return false
}

// arguments are the given ones as kubelet makes them.
func (d csiDriver) arguments(args []string) (made []string) {
	for _, arg := range args {
		for name, value := range d.Env {
			arg = strings.ReplaceAll(arg, "$("+name+")", value)
		}
		made = append(made, arg)
	}
	return made
}

// belay-attacher starts with the arguments of every driver, including those that other values of its chart add.
func TestFlagsOfCSIDrivers(t *testing.T) {
	for _, d := range csiDrivers(t) {
		t.Run(d.Driver, func(t *testing.T) {
			for _, args := range [][]string{d.Args, append(slices.Clone(d.Args), d.Optional...)} {
				_, options := commandLine(t)
				args = d.arguments(args)
				if len(args) < 2 || strings.Contains(strings.Join(args, " "), "$(") {
					t.Errorf("arguments %q", args)
				}
				if _, ok := ParseFlags(args); !ok {
					t.Errorf("%q cannot be parsed", args)
				}
				if err := options.checkValues(); err != nil {
					t.Errorf("%q: %v", args, err)
				}
				if len(options.ignored) > 0 {
					t.Errorf("%q has obsolete flags: %v", args, options.ignored)
				}
			}
		})
	}
}

// The service account of every driver has the rights of deploy/belay-attacher but those that testdata/drivers.yaml lists.
func TestRightsOfCSIDrivers(t *testing.T) {
	needed := slices.Sorted(maps.Keys(apiserver.Granted(t, "../../deploy/belay-attacher/rbac.yaml")))
	secrets := apiserver.Granted(t, "../../deploy/belay-attacher/rbac-secrets.yaml")
	for _, d := range csiDrivers(t) {
		t.Run(d.Driver, func(t *testing.T) {
			_, options := commandLine(t)
			if _, ok := ParseFlags(d.arguments(d.Args)); !ok {
				t.Fatal("the arguments cannot be parsed")
			}
			var missing, elsewhere []string
			for _, right := range needed {
				switch {
				case strings.Contains(right, "/leases") && !options.Common.LeaderElection:
				case !d.grants(right, false):
					missing = append(missing, right)
				case !d.grants(right, true):
					elsewhere = append(elsewhere, right)
				}
			}
			if diff := gocmp.Diff(d.Missing, missing); diff != "" {
				t.Errorf("missing (-listed +found):\n%s", diff)
			}
			if diff := gocmp.Diff(d.Elsewhere, elsewhere); diff != "" {
				t.Errorf("granted by another role only (-listed +found):\n%s", diff)
			}
			for right := range secrets {
				if d.grants(right, false) != d.Secrets {
					t.Errorf("secrets is %v, which the rules contradict", d.Secrets)
				}
			}
		})
	}
}

// Every driver has a row in the table of docs/adopt-attacher.md with its version, what swaps the image, and what is
// missing; and every row has a driver.
func TestDocumentedCSIDrivers(t *testing.T) {
	text, err := os.ReadFile("../../docs/adopt-attacher.md")
	must(t, err)
	_, section, _ := strings.Cut(string(text), "\n## Drivers\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := map[string][]string{}
	for line := range strings.Lines(section) {
		if cells := strings.Split(line, " | "); len(cells) == 6 && !strings.HasPrefix(line, "| driver ") {
			rows[strings.TrimPrefix(cells[0], "| ")] = cells
		}
	}
	for _, d := range csiDrivers(t) {
		row, ok := rows[d.Driver]
		if !ok {
			t.Errorf("no row of %s", d.Driver)
			continue
		}
		delete(rows, d.Driver)
		swap, image := d.swap(t)
		if want := "registry.example.com/belay/belay-attacher:VERSION"; image != want {
			t.Errorf("%s: the image is %s, want %s", d.Driver, image, want)
		}
		want := []string{d.Version, swap, rightsCell(d.Missing), map[bool]string{true: "yes", false: "no"}[d.Secrets]}
		if diff := gocmp.Diff(want, row[1:5]); diff != "" {
			t.Errorf("%s (-testdata +document):\n%s", d.Driver, diff)
		}
		for _, right := range d.Elsewhere {
			if !strings.Contains(row[5], "`"+right+"`") {
				t.Errorf("%s: the notes do not name %s", d.Driver, right)
			}
		}
	}
	for name := range rows {
		t.Errorf("%s has a row and is not in testdata/drivers.yaml", name)
	}
}

// swap is how the table writes the values, or names the object to patch; and the image that results.
func (d csiDriver) swap(t *testing.T) (cell, image string) {
	t.Helper()
	patch := d.Swap.Patch
	if (patch != nil) == (len(d.Swap.Values) > 0) {
		t.Fatalf("%s has values and a patch, or neither", d.Driver)
	}
	if patch != nil {
		return "patch of " + patch.Kind + " `" + patch.Name + "`", container(t, patch.Spec.Template.Spec).Image
	}
	var cells []string
	for _, name := range slices.Sorted(maps.Keys(d.Swap.Values)) {
		value := d.Swap.Values[name]
		cells = append(cells, "`"+name+"="+value+"`")
		switch { // sorted: registry, repository, tag
		case strings.HasSuffix(name, ".registry"):
			image = value + "/"
		case strings.HasSuffix(name, ".repository"):
			image += value
		case strings.HasSuffix(name, ".tag"):
			image += ":" + value
		}
	}
	return strings.Join(cells, ", "), image
}

func rightsCell(rights []string) string {
	if len(rights) == 0 {
		return "none"
	}
	return "`" + strings.Join(rights, "`, `") + "`"
}
