package nodes

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"belay.dev/belay/lab/jsonfile"
)

// RaiseSysctl raises a machine-wide setting, such as "fs/inotify/max_user_instances", to at least so much for as long as the lab is there.
// RestoreSysctls ends that.
func RaiseSysctl(labDir, name string, least int) error {
	return withHeldSysctls(func(held heldSysctls) error {
		now, err := readSysctl(name)
		if err != nil {
			return err
		}
		value, err := strconv.Atoi(now)
		if err != nil {
			return fmt.Errorf("read sysctl %s: %w", name, err)
		}
		if value >= least && held[name] == nil {
			return nil // and no lab will lower it
		}
		held.hold(labDir, name, now)
		if err := jsonfile.Write(sysctlRecord, held); err != nil || value >= least {
			return err
		}
		if err := os.WriteFile(filepath.Join(sysctlRoot, name), []byte(strconv.Itoa(least)), 0o644); err != nil {
			return fmt.Errorf("raise sysctl %s from %s to %d: %w", name, now, least, err)
		}
		return nil
	})
}
