package mounttable

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"syscall"
)

// maxLinks is how many symbolic links a path may lead through, as in the kernel (MAXSYMLINKS).
const maxLinks = 40

// at returns what the paths show: the mounts on them, and the parts of file systems that symbolic links lead to.
func (t *Table) at(paths []string) ([]entry, error) {
	var shown []entry
	for _, p := range paths {
		resolved, err := t.resolve(p)
		if err != nil {
			return nil, err
		}
		mounts := t.on(resolved)
		if _, err := os.Readlink(p); err == nil && len(mounts) == 0 {
			mounts = t.part(resolved)
		}
		shown = append(shown, mounts...)
	}
	return shown, nil
}

// resolve follows the symbolic links of a path without accessing what it leads to. It reads links only on file systems that answer from
// this machine: another one may hang, and what is below its mount is taken as it is written.
func (t *Table) resolve(p string) (string, error) {
	done, rest, links := "/", elements(p), 0
	for len(rest) > 0 {
		next := path.Join(done, rest[0])
		rest = rest[1:]
		if m, ok := t.top(done); len(t.on(next)) > 0 || ok && !m.local {
			done = next
			continue
		}
		target, err := os.Readlink(next)
		switch {
		case ended(err), errors.Is(err, syscall.ENOTDIR): // not a link, or nothing
			done = next
			continue
		case err != nil:
			return "", fmt.Errorf("resolve path %s: %w", p, err)
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("resolve path %s: %w", p, syscall.ELOOP)
		}
		if path.IsAbs(target) {
			done = "/"
		}
		rest = append(elements(target), rest...)
	}
	return done, nil
}

func elements(p string) []string {
	return strings.FieldsFunc(p, func(c rune) bool { return c == '/' })
}

// on returns the mounts on a path without symbolic links.
func (t *Table) on(p string) (mounts []entry) {
	for _, e := range t.own {
		if e.point == p {
			mounts = append(mounts, e)
		}
	}
	return mounts
}

// top returns the mount that a path without symbolic links is on.
func (t *Table) top(p string) (found entry, ok bool) {
	for _, e := range t.own {
		// Of several on one path, the last is on top.
		if below(p, e.point) && (!ok || len(e.point) >= len(found.point)) {
			found, ok = e, true
		}
	}
	return found, ok
}

// part returns what is at a path without symbolic links, as if it were a mount of its own.
func (t *Table) part(p string) []entry {
	m, ok := t.top(p)
	if !ok {
		return nil
	}
	m.root, m.point = path.Join(m.root, strings.TrimPrefix(p, strings.TrimSuffix(m.point, "/"))), p
	return []entry{m}
}
