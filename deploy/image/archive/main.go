// Command archive writes a container image archive (OCI image layout in a tar,
// as `ctr images import` and skopeo read it) of folders: images with one
// layer, which may have a folder for each of several architectures. It needs
// neither a container engine nor a registry, and the same files give the same
// bytes: owner root, no time of day, names in order. Layers are compressed, so
// that a registry gets them as they are, under the same digests.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
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
	out := flag.String("out", "", "the archive to write")
	entrypoint := flag.String("entrypoint", "", "`command` of the images, words separated by blanks")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: archive -out FILE.tar [-entrypoint COMMAND] NAME=[GOARCH=]FOLDER...\n"+
			"NAME is the reference of an image, such as localhost/pause:1.")
		flag.PrintDefaults()
	}
	flag.Parse()
	images, err := parse(flag.Args())
	if err != nil || *out == "" || len(images) == 0 {
		flag.Usage()
		os.Exit(2)
	}
	if err := write(*out, images, strings.Fields(*entrypoint)); err != nil {
		fmt.Fprintln(os.Stderr, "archive:", err)
		os.Exit(1)
	}
}

// image is what an image is made of.
type image struct {
	name    string
	folders []folder
}

// folder has the files of an image for one architecture.
type folder struct{ arch, path string }

// parse reads the arguments. Those of one name stand together.
func parse(args []string) ([]image, error) {
	var images []image
	for _, arg := range args {
		var name string
		next := folder{arch: runtime.GOARCH}
		switch parts := strings.Split(arg, "="); len(parts) {
		case 2:
			name, next.path = parts[0], parts[1]
		case 3:
			name, next.arch, next.path = parts[0], parts[1], parts[2]
		default:
			return nil, fmt.Errorf("%s is not NAME=[GOARCH=]FOLDER", arg)
		}
		if last := len(images) - 1; last >= 0 && images[last].name == name {
			images[last].folders = append(images[last].folders, next)
		} else {
			images = append(images, image{name, []folder{next}})
		}
	}
	return images, nil
}

// archive is the OCI image layout that is being written.
type archive struct{ tar *tar.Writer }

func (a archive) put(kind string, data []byte) (descriptor, error) {
	d := descriptor{MediaType: mediaType + kind, Digest: digest(data), Size: len(data)}
	return d, file(a.tar, "blobs/"+strings.Replace(d.Digest, ":", "/", 1), data)
}

func (a archive) putJSON(kind string, value object) (descriptor, error) {
	data, err := json.Marshal(value)
	if err != nil {
		return descriptor{}, err
	}
	return a.put(kind, data)
}

// manifest writes the image of one architecture and returns its manifest.
func (a archive) manifest(of folder, entrypoint []string) (descriptor, error) {
	files, err := layer(of.path)
	if err != nil {
		return descriptor{}, err
	}
	compressed, err := compress(files)
	if err != nil {
		return descriptor{}, err
	}
	rootfs, err := a.put("layer.v1.tar+gzip", compressed)
	if err != nil {
		return descriptor{}, err
	}
	config, err := a.putJSON("config.v1+json", object{
		"architecture": of.arch,
		"os":           "linux",
		"config":       object{"Entrypoint": entrypoint, "Env": []string{"PATH=/usr/bin:/bin"}},
		"rootfs":       object{"type": "layers", "diff_ids": []string{digest(files)}},
	})
	if err != nil {
		return descriptor{}, err
	}
	manifest, err := a.putJSON("manifest.v1+json", object{
		"schemaVersion": 2,
		"mediaType":     mediaType + "manifest.v1+json",
		"config":        config,
		"layers":        []descriptor{rootfs},
	})
	manifest.Platform = &platform{Architecture: of.arch, OS: "linux"}
	return manifest, err
}

// image writes an image, and returns its manifest or the list of those for each architecture.
func (a archive) image(of image, entrypoint []string) (descriptor, error) {
	var manifests []descriptor
	for _, folder := range of.folders {
		manifest, err := a.manifest(folder, entrypoint)
		if err != nil {
			return descriptor{}, err
		}
		manifests = append(manifests, manifest)
	}
	result := manifests[0]
	result.Platform = nil
	if len(manifests) > 1 {
		var err error
		result, err = a.putJSON("index.v1+json", object{
			"schemaVersion": 2,
			"mediaType":     mediaType + "index.v1+json",
			"manifests":     manifests,
		})
		if err != nil {
			return descriptor{}, err
		}
	}
	// containerd reads the first of these names. The second is what skopeo and podman choose an image by.
	result.Annotations = map[string]string{
		"io.containerd.image.name":          of.name,
		"org.opencontainers.image.ref.name": of.name,
	}
	return result, nil
}

func write(out string, images []image, entrypoint []string) error {
	var layout bytes.Buffer
	a := archive{tar.NewWriter(&layout)}
	var written []descriptor
	for _, image := range images {
		one, err := a.image(image, entrypoint)
		if err != nil {
			return err
		}
		written = append(written, one)
	}
	index, err := json.Marshal(object{"schemaVersion": 2, "manifests": written})
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

func digest(data []byte) string {
	return fmt.Sprintf("sha256:%x", sha256.Sum256(data))
}

func compress(data []byte) ([]byte, error) {
	var compressed bytes.Buffer
	w := gzip.NewWriter(&compressed)
	if _, err := w.Write(data); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return compressed.Bytes(), nil
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
