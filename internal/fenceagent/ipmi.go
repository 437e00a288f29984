package fenceagent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// wrapper stands for ipmitool while an agent of the IPMI family runs. The agent passes the password as an argument, which every process on
// the machine can read: the agent gets another word in its place, and this script reads the password from a private file. ipmitool ends
// with the agent, so that a command is not sent after the agent was killed.
const wrapper = `#!/bin/sh
set -f
real="$(cat "${0%/*}/real")"
before=
for word do
	shift
	if [ "$before" = -P ]; then
		before=
	elif [ "$word" = -P ]; then
		before=-P
	else
		set -- "$@" "$word"
	fi
done
if command -v setpriv >/dev/null; then
	exec setpriv --pdeathsig KILL "$real" -f "${0%/*}/password" "$@"
fi
exec "$real" -f "${0%/*}/password" "$@"
`

// placeholder is what the agent gets as the password.
const placeholder = "hidden"

// hidePassword moves the password from the options to a private file, and returns the program that the agent runs as ipmitool.
func (a *Agent) hidePassword(options map[string]string) (tool string, remove func(), err error) {
	folder, err := a.privateFolder(options["password"] + options["passwd"])
	if err != nil {
		return "", nil, err
	}
	delete(options, "passwd")
	options["password"] = placeholder
	return filepath.Join(folder, "ipmitool"), func() { _ = os.RemoveAll(folder) }, nil //nolint:gosec // it was just made
}

// privateFolder has the password, and the program that uses it.
func (a *Agent) privateFolder(password string) (string, error) {
	folder, err := os.MkdirTemp("", "belay-fence-*") // mode 0700
	if err != nil {
		return "", err
	}
	err = errors.Join(
		os.WriteFile(filepath.Join(folder, "password"), []byte(password), 0o600), //nolint:gosec // the folder was just made
		os.WriteFile(filepath.Join(folder, "real"), []byte(a.ipmitool), 0o600),   //nolint:gosec // the folder was just made
		os.WriteFile(filepath.Join(folder, "ipmitool"), []byte(wrapper), 0o700),
	)
	if err != nil {
		_ = os.RemoveAll(folder)
	}
	return folder, err
}

// guid asks the BMC for its GUID, in the byte order of SMBIOS, which the system UUID of a Node has.
func (a *Agent) guid(ctx context.Context) (string, error) {
	option := func(names ...string) string {
		for _, name := range names {
			if a.options[name] != "" {
				return a.options[name]
			}
		}
		return ""
	}
	folder, err := a.privateFolder(option("password", "passwd"))
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(folder) //nolint:errcheck // a memory file system in the Deployment
	args := []string{"-H", option("ip", "ipaddr"), "-I", "lan"}
	if l := option("lanplus"); l != "" && l != "0" || filepath.Base(a.path) != "fence_ipmilan" {
		args[3] = "lanplus"
	}
	for flag, value := range map[string]string{"-p": option("ipport"), "-U": option("username", "login"), "-C": option("cipher"), "-L": option("privlvl")} {
		if value != "" {
			args = append(args, flag, value)
		}
	}
	exit, text, err := execute(ctx, "", filepath.Join(folder, "ipmitool"), append(args, "-v", "mc", "guid", "smbios")...)
	if err != nil {
		return "", fmt.Errorf("ask the BMC for its GUID: %w", err)
	}
	for line := range strings.Lines(text) {
		if name, id, ok := strings.Cut(line, ":"); ok && exit == 0 && strings.TrimSpace(name) == "System GUID" {
			id, _, _ = strings.Cut(strings.TrimSpace(id), " ")
			return a.identity(id)
		}
	}
	if refused(exit, text) {
		return "", fmt.Errorf("%w: %s", ErrRefused, a.shown(text))
	}
	return "", fmt.Errorf("the BMC gave no GUID: exit status %d: %s", exit, a.shown(text))
}
