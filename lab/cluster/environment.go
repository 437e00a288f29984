package cluster

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// passedOn are the variables that a component may inherit. Not the rest of the user's environment:
// csi-provisioner prefers KUBECONFIG over its own flag and would work on the user's cluster, etcd
// takes settings from ETCD_*, client-go takes KUBERNETES_SERVICE_HOST for a cluster to run in.
var passedOn = []string{"HOME", "TMPDIR", "LANG", "TZ", "GOMAXPROCS", "GODEBUG", "GOTRACEBACK", "GOGC", "GOMEMLIMIT", "XDG_CACHE_HOME"}

// passedOnPrefixes begin the names of further ones: belay's own, the HTTP/2 health check of client-go, and where traces go
// (docs/traces.md).
var passedOnPrefixes = []string{"BELAY_", "HTTP2_", "OTEL_"}

// adminFolders hold mkfs, losetup and runc, and are not in every user's PATH.
var adminFolders = "/usr/local/sbin:/usr/sbin:/sbin"

// lookPath finds a program where the lab's components find it. The error is that of PATH.
func lookPath(program string) (string, error) {
	path, err := exec.LookPath(program)
	if err == nil || filepath.Base(program) != program {
		return path, err
	}
	for _, folder := range filepath.SplitList(adminFolders) {
		if path, err := exec.LookPath(filepath.Join(folder, program)); err == nil {
			return path, nil
		}
	}
	return "", err
}

// componentEnvironment is what the lab's components see of an environment.
func componentEnvironment(environment []string) []string {
	path := ""
	kept := slices.DeleteFunc(slices.Clone(environment), func(variable string) bool {
		name, value, _ := strings.Cut(variable, "=")
		if name == "PATH" {
			path = value + ":"
		}
		return !slices.Contains(passedOn, name) &&
			!slices.ContainsFunc(passedOnPrefixes, func(prefix string) bool { return strings.HasPrefix(name, prefix) })
	})
	return append(kept, "PATH="+path+adminFolders)
}
