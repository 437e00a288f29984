package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"
)

// entry is a file of an archive.
type entry struct {
	source string
	mode   fs.FileMode
}

// archives packs the programs of each platform with what belongs to them.
func archives(_ context.Context, o options) error {
	for _, product := range products {
		for _, p := range product.platforms {
			files, err := o.contents(product, p)
			if err != nil {
				return err
			}
			name, pack := o.path(product.name+"_"+p.String()+".tar.gz"), packTar
			if p.system == "windows" {
				name, pack = o.path(product.name+"_"+p.String()+".zip"), packZip
			}
			if err := writeFile(name, func(out io.Writer) error { return pack(out, files, o.created) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// contents returns the files of an archive by their paths in it.
func (o options) contents(p product, on platform) (map[string]entry, error) {
	files := map[string]entry{"LICENSE": {"LICENSE", 0o644}, "README.md": {"README.md", 0o644}}
	for _, name := range p.programs {
		files[on.program(name)] = entry{filepath.Join(o.built(on), on.program(name)), 0o755}
		if name == plugin && on.system != "windows" {
			files["kubectl_complete-belay"] = entry{"cmd/kubectl-belay/kubectl_complete-belay", 0o755}
		}
		if name == "belay-node" {
			files["belay-node.service"] = entry{"deploy/belay-node/belay-node.service", 0o644}
		}
		for root, below := range map[string]string{o.docs(name): "", o.licences(name): "licences"} {
			inside, err := filesIn(root)
			if err != nil {
				return nil, err
			}
			for _, file := range inside {
				files[path.Join(below, file)] = entry{filepath.Join(root, file), 0o644}
			}
		}
	}
	return files, nil
}

// filesIn returns the paths of all files of a folder. One without files is an error: something did not make them.
func filesIn(root string) (inside []string, err error) {
	err = filepath.WalkDir(root, func(found string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		file, err := filepath.Rel(root, found)
		inside = append(inside, filepath.ToSlash(file))
		return err
	})
	if err == nil && len(inside) == 0 {
		err = fmt.Errorf("%s is empty", root)
	}
	return inside, err
}

// packTar writes a tar.gz that depends on the files and the time alone.
func packTar(out io.Writer, files map[string]entry, at time.Time) error {
	packed, err := gzip.NewWriterLevel(out, gzip.DefaultCompression)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(packed)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f := files[name]
		info, err := os.Stat(f.source)
		if err != nil {
			return err
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: path.Clean(name), Mode: int64(f.mode), Size: info.Size(), ModTime: at, Format: tar.FormatUSTAR}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		if err := copyFile(archive, f.source); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return packed.Close()
}

// packZip does the same for Windows.
func packZip(out io.Writer, files map[string]entry, at time.Time) error {
	archive := zip.NewWriter(out)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		header := &zip.FileHeader{Name: path.Clean(name), Method: zip.Deflate, Modified: at}
		header.SetMode(files[name].mode)
		to, err := archive.CreateHeader(header)
		if err != nil {
			return err
		}
		if err := copyFile(to, files[name].source); err != nil {
			return err
		}
	}
	return archive.Close()
}

func writeFile(name string, write func(io.Writer) error) (err error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil { //nolint:gosec // for everyone
		return err
	}
	file, err := os.Create(name) //nolint:gosec // of the release
	if err != nil {
		return err
	}
	defer func() {
		if e := file.Close(); err == nil {
			err = e
		}
	}()
	return write(file)
}

// gzipped packs one text, as packages of Linux want man pages.
func gzipped(source string) ([]byte, error) {
	var b bytes.Buffer
	packed, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if err := copyFile(packed, source); err != nil {
		return nil, err
	}
	if err := packed.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
