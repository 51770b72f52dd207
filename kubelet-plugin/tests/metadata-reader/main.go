// Reads device metadata from standard input as a container's program would, once in each version, and fails where
// upstream's decoder or validation does. Prints the object that the first one becomes, and where the file would be in
// the container for a claim and for one from a template.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"os"

	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/devicemetadata"
)

func main() {
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		log.Fatal(err)
	}
	objects := json.NewDecoder(bytes.NewReader(input))
	for objects.More() {
		var object json.RawMessage
		if err := objects.Decode(&object); err != nil {
			log.Fatal(err)
		}
		read(object)
	}
	object := read(input)
	result, err := json.Marshal(object)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(result))
	driver := object.Requests[0].Devices[0].Driver
	fmt.Println(metadata.ResourceClaimFilePath(driver, "c", "net"))
	fmt.Println(metadata.ResourceClaimTemplateFilePath(driver, "lan", "net"))
}

func read(text []byte) *metadata.DeviceMetadata {
	stream := json.NewDecoder(bytes.NewReader(text))
	var decoded metadata.DeviceMetadata
	var invalid error
	err := devicemetadata.DecodeMetadataFromStream(stream, &decoded, devicemetadata.DecodeMetadataWithValidationResult(&invalid))
	if err != nil {
		log.Fatal(err)
	}
	if invalid != nil {
		log.Fatal("invalid: ", invalid)
	}
	return &decoded
}
