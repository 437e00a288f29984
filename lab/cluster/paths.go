package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"belay.dev/belay/lab/socket"
)

// CacheDir is where all that the lab keeps lies: BELAY_CACHE, or belay in the user's cache
// folder ($XDG_CACHE_HOME, ~/.cache).
func CacheDir() (string, error) {
	if dir := os.Getenv("BELAY_CACHE"); dir != "" {
		absolute, err := filepath.Abs(dir)
		if err != nil {
			return "", fmt.Errorf("finding the cache folder BELAY_CACHE: %w", err)
		}
		return absolute, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache folder (set BELAY_CACHE to name one): %w", err)
	}
	return filepath.Join(dir, "belay"), nil
}

// paths of one lab.
type paths struct {
	cache string
	name  string
}

func labPaths(name string) (paths, error) {
	cache, err := CacheDir()
	return paths{cache: cache, name: name}, err
}

func (p paths) dir() string { return filepath.Join(p.cache, "labs", p.name) }

// lock lies beside the lab's folder, so that it can be held while the folder goes.
func (p paths) lock() string { return filepath.Join(p.cache, "labs", "."+p.name+".lock") }

// lastLogs keeps the logs of the last run, for finding out why it failed.
func (p paths) lastLogs() string { return filepath.Join(p.cache, "logs", p.name) }

func (p paths) state() string   { return filepath.Join(p.dir(), "lab.json") }
func (p paths) control() string { return filepath.Join(p.dir(), "control.sock") }
func (p paths) run() string     { return filepath.Join(p.dir(), "run") }
func (p paths) logs() string    { return filepath.Join(p.dir(), "logs") }
func (p paths) log(component string) string {
	return filepath.Join(p.logs(), fileName(component)+".log")
}
func (p paths) audit() string                  { return filepath.Join(p.dir(), "audit") }
func (p paths) auditLog() string               { return filepath.Join(p.audit(), "audit.log") }
func (p paths) auditPolicy() string            { return filepath.Join(p.audit(), "policy.json") }
func (p paths) pki() string                    { return filepath.Join(p.dir(), "pki") }
func (p paths) cert(file string) string        { return filepath.Join(p.pki(), file) }
func (p paths) etcd() string                   { return filepath.Join(p.dir(), "etcd") }
func (p paths) fabric() string                 { return filepath.Join(p.dir(), "fabric") }
func (p paths) fabricSocket() string           { return filepath.Join(p.fabric(), "fabric.sock") }
func (p paths) csiDir() string                 { return filepath.Join(p.fabric(), "csi") }
func (p paths) csiSocket(driver string) string { return filepath.Join(p.csiDir(), driver+".sock") }
func (p paths) nodes() string                  { return filepath.Join(p.dir(), "nodes") }
func (p paths) node(name string) string        { return filepath.Join(p.nodes(), name) }
func (p paths) nodeConfig(name string) string  { return filepath.Join(p.nodes(), name+".json") }

// kubeconfig of an identity. The admin's lies at the top, where people look for it.
func (p paths) kubeconfig(identity string) string {
	if identity == identityAdmin {
		return filepath.Join(p.dir(), "kubeconfig")
	}
	return filepath.Join(p.pki(), identity+".kubeconfig")
}

// linkedKubeconfig is a component's, over its own link to the API server.
func (p paths) linkedKubeconfig(component string) string {
	return filepath.Join(p.pki(), component+"-linked.kubeconfig")
}

func fileName(component string) string { return strings.ReplaceAll(component, "/", "_") }

// checkLengths refuses a cache folder that is too deep for the unix sockets of a lab with so many nodes.
func (p paths) checkLengths(drivers []string, nodeCount int) error {
	sockets := []string{p.control(), p.fabricSocket()}
	for _, driver := range drivers {
		sockets = append(sockets, p.csiSocket(driver),
			filepath.Join(p.node(nodeName(nodeCount)), "root", "plugins_registry", driver+"-reg.sock"))
	}
	for _, path := range sockets {
		if len(path) > socket.MaxPath {
			return fmt.Errorf("the cache folder's path is too long: the socket %s has %d bytes, at most %d work; set BELAY_CACHE to a shorter path",
				path, len(path), socket.MaxPath)
		}
	}
	return nil
}

// siblings are belay's own programs. They lie beside belay-lab; BELAY_BIN names another folder
// (tests need it: their own executable lies elsewhere).
type siblings struct{ dir string }

func findSiblings(needed []string) (siblings, error) {
	dir := os.Getenv("BELAY_BIN")
	if dir == "" {
		self, err := os.Executable()
		if err != nil {
			return siblings{}, fmt.Errorf("finding this program: %w", err)
		}
		dir = filepath.Dir(self)
	}
	var missing []string
	for _, name := range needed {
		if _, err := os.Stat(filepath.Join(dir, name)); errors.Is(err, os.ErrNotExist) { //nolint:gosec // the user names the folder
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return siblings{}, fmt.Errorf("%s not in %s: run `make build`, or set BELAY_BIN to the folder with belay's programs",
			strings.Join(missing, ", ")+isOrAre(len(missing)), dir)
	}
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return siblings{}, fmt.Errorf("finding the folder of belay's programs: %w", err)
	}
	return siblings{dir: absolute}, nil
}

// Program is one of belay's own programs, which the lab does not need for itself.
func Program(name string) (path string, err error) {
	s, err := findSiblings([]string{name})
	return s.path(name), err
}

func isOrAre(n int) string {
	if n == 1 {
		return " is"
	}
	return " are"
}

func (s siblings) path(name string) string { return filepath.Join(s.dir, name) }
