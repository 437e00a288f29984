package field

import (
	"embed"
	"fmt"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"belay.dev/belay/internal/kube"
	"belay.dev/belay/internal/usage"
)

//go:embed situations/*.yaml
var files embed.FS

// surroundings is the file of what all situations share: nodes, drivers and classes. It is no situation.
const surroundings = "_base"

// Situation is one in which a person asks a question.
type Situation struct {
	// Name is that of the file. The objects are in the namespace f-NAME.
	Name string `json:"-"`
	// Title says what is the matter, in a line.
	Title string `json:"title"`
	// Sources are reports of the situation, as repository#number.
	Sources []string `json:"sources"`
	// Ask are the objects that a person would ask about, as `kubectl belay explain` takes them.
	Ask []string `json:"ask"`
	// Cause and Step are what an answer has to say first: the cause, and what to do. They are for a reader who grades the answer.
	Cause string `json:"cause"`
	Step  string `json:"step"`
	// Objects are API objects with their status, and the kinds Event, NodeVolumes, Delete, Patch and Wait, in the order in which they are
	// made. What complete adds is left out.
	Objects []object `json:"objects"`
}

// object is an API object, or what a maker does.
type object = map[string]any

// Namespace is where the objects of the situation are.
func (s *Situation) Namespace() string { return "f-" + s.Name }

// Names are the names of all situations, in order.
func Names() []string {
	entries, err := files.ReadDir("situations")
	if err != nil {
		panic(err) // it is part of this program
	}
	var names []string
	for _, e := range entries {
		if name := strings.TrimSuffix(e.Name(), ".yaml"); name != surroundings {
			names = append(names, name)
		}
	}
	return names
}

// Load reads situations, all without a name.
func Load(names ...string) ([]*Situation, error) {
	if len(names) == 0 {
		names = Names()
	}
	var all []*Situation
	for _, name := range names {
		if !slices.Contains(Names(), name) {
			return nil, usage.Errorf("there is no situation %q; belay-lab field --list names them", name)
		}
		s, err := load(name)
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

func load(name string) (*Situation, error) {
	content, err := files.ReadFile(path.Join("situations", name+".yaml"))
	if err != nil {
		return nil, fmt.Errorf("reading situation %s: %w", name, err)
	}
	s := &Situation{Name: name}
	if err := yaml.UnmarshalStrict(content, s); err != nil {
		return nil, fmt.Errorf("reading situation %s: %w", name, err)
	}
	for i, o := range s.Objects {
		s.Objects[i] = s.complete(o)
	}
	return s, nil
}

// Questions are the commands of a situation, without the name of the plugin.
func (s *Situation) Questions() [][]string {
	var all [][]string
	for _, ask := range s.Ask {
		all = append(all, []string{"explain", ask, "-n", s.Namespace()})
	}
	return append(all, []string{"stuck", "-n", s.Namespace()})
}

// attachmentName is the name of a VolumeAttachment that a file gives as auto:HANDLE:DRIVER:NODE. A handle may have colons, too.
func attachmentName(auto string) string {
	parts := strings.Split(strings.TrimPrefix(auto, "auto:"), ":")
	n := len(parts)
	return kube.AttachmentName(strings.Join(parts[:n-2], ":"), parts[n-2], parts[n-1])
}
