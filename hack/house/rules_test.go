package house

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

const (
	module    = "belay.dev/belay"
	labModule = module + "/lab"
)

// pure packages decide and do nothing else. They may import the standard library
// and, from the project, only what is listed for them.
var pure = map[string][]string{
	"internal/attachment":  {"internal/fencing"},
	"internal/publication": nil,
	"internal/nodevolume":  nil,
	"internal/fencing":     nil,
}

// adapters know one outside world each: the module paths of its libraries.
var adapters = map[string][]string{
	"internal/kube": {"k8s.io/", "sigs.k8s.io/controller-runtime", "github.com/go-logr/logr"},
	"internal/csi": {
		"github.com/container-storage-interface/spec", "github.com/kubernetes-csi/csi-lib-utils",
		"google.golang.org/grpc", "google.golang.org/protobuf",
		"k8s.io/kubelet/pkg/apis/pluginregistration", "k8s.io/api", "k8s.io/apimachinery", "github.com/go-logr/logr", "k8s.io/klog/v2",
	},
	"internal/containers": {"k8s.io/cri-api", "google.golang.org/grpc"},
	"internal/mounttable": {"golang.org/x/sys"},
	"internal/mount":      {"k8s.io/mount-utils", "k8s.io/utils", "github.com/moby/sys/mountinfo", "golang.org/x/sys", "github.com/go-logr/logr"},
}

// shells observe, decide and act; none imports another.
var shells = []string{"internal/attachdetach", "internal/attacher", "internal/nodeagent", "internal/preflight", "internal/recovery"}

// shared may be imported by every shell.
var shared = []string{"internal/explain", "internal/telemetry"}

// pkg is the part of `go list -json` that the rules look at.
type pkg struct {
	ImportPath string
	Imports    []string
}

// breaches lists every import of p that the rules forbid.
func breaches(p pkg, isStandard func(string) bool) []string {
	name := strings.TrimPrefix(p.ImportPath, module+"/")
	var found []string
	if slices.Contains([]string{"util", "utils", "common", "helpers"}, path.Base(name)) {
		found = append(found, p.ImportPath+": a package is named by what it hides")
	}
	for _, imported := range p.Imports {
		if reason := forbidden(name, imported, isStandard(imported)); reason != "" {
			found = append(found, fmt.Sprintf("%s imports %s: %s", p.ImportPath, imported, reason))
		}
	}
	return found
}

// forbidden says why package name must not import path, or "" where it may.
func forbidden(name, path string, standard bool) string {
	own, isOwn := strings.CutPrefix(path, module+"/")
	switch {
	case path == labModule || strings.HasPrefix(path, labModule+"/"):
		return "nothing imports the lab"
	case standard:
		return ""
	}
	if allowed, ok := pure[name]; ok {
		if isOwn && slices.Contains(allowed, own) {
			return ""
		}
		return "a pure package imports the standard library only"
	}
	if libraries, ok := adapters[name]; ok {
		return forbiddenInAdapter(own, isOwn, path, libraries)
	}
	if !isOwn {
		if slices.Contains(shared[:1], name) {
			return "explain imports pure packages only"
		}
		return ""
	}
	return forbiddenInside(name, own)
}

func forbiddenInAdapter(own string, isOwn bool, path string, libraries []string) string {
	if isOwn {
		if _, ok := pure[own]; ok {
			return ""
		}
		return "an adapter imports pure packages and its one library, no other package of the project"
	}
	for _, library := range libraries {
		if path == library || strings.HasPrefix(path, strings.TrimSuffix(library, "/")+"/") {
			return ""
		}
	}
	return "an adapter imports its one library only"
}

// forbiddenInside judges imports between packages of the project.
func forbiddenInside(name, own string) string {
	_, ownIsPure := pure[own]
	switch {
	case slices.Contains(shells, name) && slices.Contains(shells, own):
		return "a shell never imports another shell"
	case slices.Contains(shared, name) && !ownIsPure:
		return name + " imports pure packages only"
	case slices.Contains(shells, name) && (strings.HasPrefix(own, "cmd/") || own == "node"):
		return "a shell is wired by others, it does not import them"
	}
	return ""
}
