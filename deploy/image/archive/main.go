// Command archive writes a container image archive (OCI image layout in a tar,
// as `ctr images import`, podman and docker load it) of folders: an image with
// one layer, or one for several architectures with a folder for each. It needs
// neither a container engine nor a registry, and the same files give the same
// bytes: owner root, no time of day, names in order.
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// Media types and the fields below: OCI image specification 1.1.
const mediaType = "application/vnd.oci.image."

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// platform is what the manifests of an image for several machines say of theirs.
type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type object = map[string]any

func main() {
	name := flag.String("name", "", "`reference` of the image, such as localhost/netclaim:dev")
	out := flag.String("out", "", "the archive to write")
	entrypoint := flag.String("entrypoint", "", "`command` of the image, words separated by blanks")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: archive -name REFERENCE -out FILE.tar [-entrypoint COMMAND] FOLDER\n"+
			"       archive -name REFERENCE -out FILE.tar [-entrypoint COMMAND] GOARCH=FOLDER...")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *name == "" || *out == "" || flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := write(*out, *name, strings.Fields(*entrypoint), flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "archive:", err)
		os.Exit(1)
	}
}

// archive is the OCI image layout that is being written.
type archive struct{ tar *tar.Writer }

func (a archive) put(kind string, data []byte) (descriptor, error) {
	d := descriptor{MediaType: mediaType + kind, Digest: fmt.Sprintf("sha256:%x", sha256.Sum256(data)), Size: len(data)}
	return d, file(a.tar, "blobs/"+strings.Replace(d.Digest, ":", "/", 1), data)
}

func (a archive) putJSON(kind string, value object) (descriptor, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return descriptor{}, err
	}
	return a.put(kind, data)
}

// image writes the image of one architecture and returns its manifest.
func (a archive) image(arch string, entrypoint []string, folder string) (descriptor, error) {
	files, err := layer(folder)
	if err != nil {
		return descriptor{}, err
	}
	rootfs, err := a.put("layer.v1.tar", files)
	if err != nil {
		return descriptor{}, err
	}
	config, err := a.putJSON("config.v1+json", object{
		"architecture": arch,
		"os":           "linux",
		"config":       object{"Entrypoint": entrypoint, "Env": []string{"PATH=/usr/bin:/bin"}},
		"rootfs":       object{"type": "layers", "diff_ids": []string{rootfs.Digest}},
	})
	if err != nil {
		return descriptor{}, err
	}
	return a.putJSON("manifest.v1+json", object{
		"schemaVersion": 2,
		"mediaType":     mediaType + "manifest.v1+json",
		"config":        config,
		"layers":        []descriptor{rootfs},
	})
}

// write writes an image of one folder for this machine, or of a folder for each architecture.
func write(out, name string, entrypoint, folders []string) error {
	var layout bytes.Buffer
	a := archive{tar.NewWriter(&layout)}
	var manifests []descriptor
	for _, item := range folders {
		arch, folder, given := strings.Cut(item, "=")
		if !given {
			arch, folder = runtime.GOARCH, item
		}
		manifest, err := a.image(arch, entrypoint, folder)
		if err != nil {
			return err
		}
		manifest.Platform = &platform{Architecture: arch, OS: "linux"}
		manifests = append(manifests, manifest)
	}
	image := manifests[0]
	image.Platform = nil
	if len(manifests) > 1 {
		var err error
		image, err = a.putJSON("index.v1+json", object{
			"schemaVersion": 2,
			"mediaType":     mediaType + "index.v1+json",
			"manifests":     manifests,
		})
		if err != nil {
			return err
		}
	}
	// containerd reads the first of these names, podman and docker the second.
	_, tag, _ := strings.Cut(filepath.Base(name), ":")
	image.Annotations = map[string]string{
		"io.containerd.image.name":          name,
		"org.opencontainers.image.ref.name": tag,
	}
	index, err := json.Marshal(object{"schemaVersion": 2, "manifests": []descriptor{image}})
	if err != nil {
		return err
	}
	if err := file(a.tar, "index.json", index); err != nil {
		return err
	}
	if err := file(a.tar, "oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	if err := a.tar.Close(); err != nil {
		return err
	}
	return os.WriteFile(out, layout.Bytes(), 0o644)
}

// layer is the tar of a folder's files: WalkDir goes through them in lexical order.
func layer(folder string) ([]byte, error) {
	var data bytes.Buffer
	w := tar.NewWriter(&data)
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == folder {
			return err
		}
		name, err := filepath.Rel(folder, path)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		switch {
		case info.IsDir():
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: int64(info.Mode().Perm())})
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777})
		case info.Mode().IsRegular():
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(info.Mode().Perm()), Size: int64(len(content))}
			if err := w.WriteHeader(header); err != nil {
				return err
			}
			_, err = w.Write(content)
			return err
		default:
			return fmt.Errorf("%s: neither a file, a folder nor a symbolic link", path)
		}
	})
	if err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return data.Bytes(), nil
}

func file(w *tar.Writer, name string, data []byte) error {
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
		return err
	}
	_, err := w.Write(data)
	return err
}
