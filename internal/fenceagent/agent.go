package fenceagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"belay.dev/belay/internal/fencing"
)

// Exit statuses of the action status. 2 is also that of wrong arguments, so the text counts too.
const (
	exitOn  = 0
	exitOff = 2
)

// ErrNoIdentity is returned for an agent that cannot report which hardware it switches.
var ErrNoIdentity = errors.New("the agent does not report the identity of its hardware")

// AgentError is an error about the program itself: it is not installed, or does not describe itself as a fence agent. Other errors of New are
// about the options.
type AgentError struct{ error }

// Unwrap returns what is wrong with the program.
func (e AgentError) Unwrap() error { return e.error }

// Agent is one power switch, and the program that speaks to it.
type Agent struct {
	path    string
	options map[string]string
	secrets []string // values that must not appear anywhere
	ipmi    bool
	// ipmitool is the path of the program that an agent of ipmiAgents runs.
	ipmitool string
}

// ipmiAgents are the agents that run ipmitool.
var ipmiAgents = []string{"fence_ipmilan", "fence_ipmilanplus", "fence_idrac", "fence_ilo3", "fence_ilo4", "fence_ilo5", "fence_imm"}

var (
	agentName = regexp.MustCompile(`^fence_[A-Za-z0-9_.-]+$`)
	optionKey = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	// reserved are options that belay sets itself, that would change what an answer means (of which machine it is, too), that name a program to run
	// or a file to write, or whose value would be in the process list.
	reserved = regexp.MustCompile(`^(action|plug|port|nodename|missing_as_off|method|hexadecimal_kg|ssh_options|verbose|verbose_level|` +
		`network_fencing|baremetalsolution|record_only|port_as_ip|target|status_file|runonfail|runonwarn|exec|openrc|logfile|use_sudo|sudo)$|_path$|_script$|^debug`)
)

// Find returns the path of an agent in a list of directories, separated by colons.
func Find(directories, name string) (string, error) {
	if !agentName.MatchString(name) {
		return "", AgentError{fmt.Errorf("agent %q: the name must begin with fence_ and have no slash", name)}
	}
	for _, directory := range filepath.SplitList(directories) {
		path := filepath.Join(directory, name)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 && directory != "" {
			return path, nil
		}
	}
	return "", AgentError{fmt.Errorf("agent %s is not in %s: install it there, or name its directory with --recovery-agent-path", name, directories)}
}

// New returns the agent for a power switch. The values of secret are options too, and never appear in an error, an argument or a result.
func New(ctx context.Context, path string, options map[string]string, plug string, secret map[string][]byte) (*Agent, error) {
	a := &Agent{path: path, options: map[string]string{}, ipmi: slices.Contains(ipmiAgents, filepath.Base(path))}
	for key, value := range options {
		if err := a.set(key, value); err != nil {
			return nil, err
		}
	}
	for key, value := range secret {
		text := strings.TrimSuffix(string(value), "\n")
		if err := a.set(key, text); err != nil {
			return nil, err
		}
		if key != "username" && key != "login" {
			a.secrets = append(a.secrets, text)
		}
	}
	slices.SortFunc(a.secrets, func(x, y string) int { return len(y) - len(x) }) // no rest of a longer one stays
	if a.options["password"] != "" && a.options["passwd"] != "" {
		return nil, errors.New("the options password and passwd are the same: set one of them")
	}
	if strings.ContainsAny(plug, "\n\x00") {
		return nil, errors.New("the plug has a newline")
	}
	if plug != "" {
		a.options["plug"] = plug
	}
	if a.ipmi {
		// Found now, so that its absence is an error of the program and no login that failed.
		tool, err := exec.LookPath("ipmitool")
		if err != nil {
			return nil, AgentError{fmt.Errorf("agent %s needs ipmitool: %w", filepath.Base(path), err)}
		}
		a.ipmitool = tool
	}
	if err := a.checkKnown(ctx); err != nil {
		return nil, err
	}
	return a, checkValues(filepath.Base(path), options)
}

// ValidName reports whether an agent may have this name.
func ValidName(name string) bool { return agentName.MatchString(name) }

// ValidOption reports whether an agent may have an option of this name.
func ValidOption(key string) bool { return optionKey.MatchString(key) }

// Reserved reports whether an option must not be set by people.
func Reserved(key string) bool { return reserved.MatchString(key) }

func (a *Agent) set(key, value string) error {
	switch _, twice := a.options[key]; {
	case !ValidOption(key):
		return fmt.Errorf("option %q: only lower-case letters, digits and underscores", key)
	case Reserved(key):
		return fmt.Errorf("option %s is reserved: it would change what the agent does", key)
	case strings.ContainsAny(value, "\n\x00"):
		return fmt.Errorf("option %s: the value has a newline", key)
	case twice:
		return fmt.Errorf("option %s is in the FenceSource and in the Secret", key)
	}
	a.options[key] = value
	return nil
}

// checkKnown refuses options that the agent does not know: it would ignore them.
func (a *Agent) checkKnown(ctx context.Context) error {
	m, err := metadataOf(ctx, a.path)
	if err != nil {
		return AgentError{err}
	}
	for key := range a.options {
		if !m.has(key) && key != "plug" {
			return fmt.Errorf("agent %s has no option %s", filepath.Base(a.path), key)
		}
	}
	return nil
}

// Status asks for the power state. It is PowerUnknown, with an error, for anything but a clear answer.
func (a *Agent) Status(ctx context.Context) (fencing.Power, string, error) {
	exit, text, err := a.run(ctx, "status")
	switch {
	case err != nil:
	case exit == exitOff && says(text, "OFF"):
		return fencing.PowerOff, a.shown(text), nil
	case exit == exitOn && says(text, "ON"):
		return fencing.PowerOn, a.shown(text), nil
	default:
		err = fmt.Errorf("agent %s gave no clear answer to status: exit status %d: %s", filepath.Base(a.path), exit, a.shown(text))
	}
	return fencing.PowerUnknown, a.shown(text), err
}

// says reports whether the answer has exactly one state, and this one.
func says(text, state string) bool {
	found := ""
	for line := range strings.Lines(text) {
		if s, ok := strings.CutPrefix(strings.TrimSpace(line), "Status: "); ok {
			if found != "" && found != s {
				return false
			}
			found = s
		}
	}
	return found == state
}

// Off switches off. That it returned says nothing about the state.
func (a *Agent) Off(ctx context.Context) error {
	exit, text, err := a.run(ctx, "off")
	if err == nil && exit != 0 {
		err = fmt.Errorf("agent %s failed to switch off: exit status %d: %s", filepath.Base(a.path), exit, a.shown(text))
	}
	return err
}

// Identity returns the system UUID of the hardware: from the BMC's GUID, from Redfish, or from a command with the action identity.
func (a *Agent) Identity(ctx context.Context) (string, error) {
	switch {
	case a.ipmi:
		return a.guid(ctx)
	case filepath.Base(a.path) == "fence_redfish":
		return a.redfishUUID(ctx)
	}
	m, err := metadataOf(ctx, a.path)
	if err != nil {
		return "", err
	}
	if !m.does("identity") {
		return "", ErrNoIdentity
	}
	exit, text, err := a.run(ctx, "identity")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(text) {
		if id, ok := strings.CutPrefix(strings.TrimSpace(line), "Identity: "); ok && exit == 0 && id != "" {
			return a.identity(id)
		}
	}
	return "", fmt.Errorf("agent %s gave no identity: exit status %d: %s", filepath.Base(a.path), exit, a.shown(text))
}

// identityForm is a system UUID, or what a command of one's own calls its machine: one word.
var identityForm = regexp.MustCompile(`^[0-9A-Za-z._-]{1,64}$`)

// shortSecret is the length below which a value of the Secret may be in a word by chance.
const shortSecret = 6

// identity is what the hardware gave. What has a value of the Secret in it is none: every client that may read the FenceSource would see it.
func (a *Agent) identity(id string) (string, error) {
	told := slices.ContainsFunc(a.secrets, func(s string) bool { return id == s || len(s) >= shortSecret && strings.Contains(id, s) })
	if told || !identityForm.MatchString(id) {
		return "", fmt.Errorf("agent %s gave an identity that is not one word, or has a value of its Secret in it: %s", filepath.Base(a.path), a.shown(id))
	}
	return id, nil
}
