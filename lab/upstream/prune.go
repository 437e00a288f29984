package upstream

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Prune removes folders of programs from the cache folder, but for the keep that were used
// last, and returns what it removed. Programs that run, and those that are being built, stay.
func Prune(cache string, keep int) ([]string, error) {
	entries, err := os.ReadDir(filepath.Join(cache, "bin"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listing the folders of programs: %w", err)
	}
	var folders []fs.FileInfo
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && info.IsDir() {
			folders = append(folders, info)
		}
	}
	slices.SortFunc(folders, func(a, b fs.FileInfo) int {
		return cmp.Or(b.ModTime().Compare(a.ModTime()), strings.Compare(a.Name(), b.Name()))
	})
	var removed []string
	for _, folder := range folders[min(keep, len(folders)):] {
		dir := filepath.Join(cache, "bin", folder.Name())
		unlock, err := tryLock(dir)
		if err != nil {
			return removed, err
		}
		if unlock == nil {
			continue // it is being built
		}
		used := inUse(dir)
		if !used {
			err = os.RemoveAll(dir)
		}
		unlock()
		switch {
		case err != nil:
			return removed, fmt.Errorf("removing old programs: %w", err)
		case !used:
			removed = append(removed, dir)
		}
	}
	return removed, nil
}

// inUse reports whether a program of the folder runs.
func inUse(dir string) bool {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real
	}
	links, _ := filepath.Glob("/proc/[0-9]*/exe") // the pattern is valid
	return slices.ContainsFunc(links, func(link string) bool {
		program, err := os.Readlink(link)
		return err == nil && strings.HasPrefix(program, dir+"/")
	})
}
