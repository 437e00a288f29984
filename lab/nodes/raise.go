package nodes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"belay.dev/belay/lab/jsonfile"
)

// RaiseSysctl raises a machine-wide setting, such as "fs/inotify/max_user_instances", to at least so much for as long as the lab is there:
// RestoreSysctls writes back what it was.
func RaiseSysctl(labDir, name string, least int) error {
	return withSysctlLock(labDir, func(file string) error {
		raw, err := os.ReadFile(filepath.Join(sysctlRoot, name))
		if err != nil {
			return fmt.Errorf("read sysctl %s: %w", name, err)
		}
		now := strings.TrimSpace(string(raw))
		value, err := strconv.Atoi(now)
		if err != nil {
			return fmt.Errorf("read sysctl %s: %w", name, err)
		}
		if value >= least {
			return nil
		}
		values := map[string]string{}
		if err := jsonfile.Read(file, &values); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("read recorded sysctls: %w", err)
		}
		if _, recorded := values[name]; !recorded {
			values[name] = now
		}
		if err := jsonfile.Write(file, values); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(sysctlRoot, name), []byte(strconv.Itoa(least)), 0o644); err != nil {
			return fmt.Errorf("raise sysctl %s from %s to %d: %w", name, now, least, err)
		}
		return nil
	})
}
